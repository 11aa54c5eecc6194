/* Messages to and from the node daemon. */
#ifndef MOSRUN_MESSAGE_H
#define MOSRUN_MESSAGE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LONGEST = 1024 /* bytes of a text */ };

struct message {
	size_t size;
	unsigned char bytes[9 * LONGEST];
};

void put(struct message *message, const void *bytes, size_t size);
/* A text of at most LONGEST bytes; what is no UTF-8 in it becomes question marks. */
void put_text(struct message *message, const char *text);
void put_truth(struct message *message, const char *key, bool value);
void put_pair(struct message *message, const char *key, const char *value);

/* Returns how many bytes of an answer came in time. */
size_t receive(int connection, unsigned char *answer, size_t room);
/* What a refusal says: {"ok": false, "error": text, "code": number}, or with other names of the two, a restart. Errors: false: it is
 * something else. */
bool understand(const unsigned char *at, const unsigned char *end, const char *text, char *sentence, size_t room, const char *number,
                int *code);

#endif
