/* copier: copies what comes through the fifo `feed` into the file `lines`, each read written at once; ends at its end. */
#include <fcntl.h>
#include <unistd.h>

int main(void)
{
	char bytes[256];
	ssize_t count;
	int from = open("feed", O_RDONLY), to = open("lines", O_WRONLY | O_CREAT | O_APPEND, 0644);
	if (from < 0 || to < 0)
		return 1;
	while ((count = read(from, bytes, sizeof bytes)) > 0)
		if (write(to, bytes, count) != count)
			return 2;
	return count < 0;
}
