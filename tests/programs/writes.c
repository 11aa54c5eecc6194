/* writes MILLISECONDS ROUNDS: writes a MiB to a pipe at once, which another thread empties only then. Says what write(2) says, each time,
 * and rests for a second. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static char given[1 << 20], taken[1 << 16];
static int ends[2];

static void rest(int milliseconds) { nanosleep(&(struct timespec){milliseconds / 1000, milliseconds % 1000 * 1000000l}, NULL); }

static void *empty(void *milliseconds) {
    rest(*(int *)milliseconds);
    while (read(ends[0], taken, sizeof taken) > 0)
        ;
    return NULL;
}

int main(int count, char **words) {
    if (count != 3)
        return 2;
    int milliseconds = atoi(words[1]), rounds = atoi(words[2]);
    FILE *lines = fopen("lines", "w");
    while (rounds--) {
        pthread_t reader;
        if (pipe(ends))
            return 3;
        pthread_create(&reader, NULL, empty, &milliseconds);
        fputs("writes\n", lines);
        fflush(lines);
        ssize_t written = write(ends[1], given, sizeof given);
        close(ends[1]);
        pthread_join(reader, NULL);
        close(ends[0]);
        printf("wrote %zd\n", written);
        fflush(stdout);
        rest(1000);
    }
    return 0;
}
