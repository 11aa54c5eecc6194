/* low_stack: waits in read() with a stack pointer that has next to nothing below it: its stack is one page that it maps itself, the
 * page below may not be touched. Prints a line when it is there, and one with what it has read, if its stack is as it was. */
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static char *page;

static long read_from(char *stack, char *buffer)
{
	long got = 0; /* SYS_read */
	__asm__ volatile("mov %%rsp, %%rbx\n\tmov %[stack], %%rsp\n\tsyscall\n\tmov %%rbx, %%rsp"
	                 : "+a"(got)
	                 : "D"(0), "S"(buffer), "d"(64), [stack] "r"(stack)
	                 : "rbx", "rcx", "r11", "memory");
	return got;
}

int main(void)
{
	char buffer[64];
	page = mmap(NULL, 3 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED || mprotect(page + 4096, 4096, PROT_READ | PROT_WRITE))
		return 1;
	page += 4096;
	memset(page, 's', 4096);
	if (write(1, "waiting\n", 8) != 8)
		return 1;
	long got = read_from(page + 256, buffer);
	for (int i = 0; i < 4096; i++)
		if (page[i] != 's')
			return 3;
	return write(1, buffer, (size_t)got) == got ? 0 : 1;
}
