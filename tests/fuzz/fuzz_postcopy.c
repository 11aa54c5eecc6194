/* The side of post-copy that wants pages: frames as a hostile source may send them. The process whose pages come is this one, or rather a
 * piece of its memory that no thread here touches. The right checksum is put into most frames: no input would guess it. */
#define _GNU_SOURCE
#include "postcopy/receive.c"
#include "input.h"
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>

int farhome_postcopy_begin(int userfaultfd);
struct sink *farhome_sink_new(int pid, int userfaultfd, int changed);
int farhome_sink_register(struct sink *sink, uint64_t start, uint64_t end);
int farhome_sink_owe(struct sink *sink, const struct run *runs, size_t count);
void farhome_sink_free(struct sink *sink);

#define PLACE 0x210000000000ull
#define PLACES 64u /* pages */

static void require(int holds)
{
	if (!holds)
		abort();
}

static struct sink *begin(void)
{
	void *memory = mmap((void *)PLACE, PLACES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	int userfaultfd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK), changed = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	static const struct run runs[] = {{PLACE, 8 * PAGE}, {PLACE + 16 * PAGE, 40 * PAGE}};

	require(memory != MAP_FAILED && userfaultfd >= 0 && !farhome_postcopy_begin(userfaultfd));
	struct sink *sink = farhome_sink_new(0, userfaultfd, changed);
	require(sink && !farhome_sink_register(sink, PLACE, PLACE + PLACES * PAGE) && !farhome_sink_owe(sink, runs, 2));
	return sink;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input input = {data, size};
	struct sink *sink = begin();

	for (int i = 0; i < 16 && input.left; i++) {
		struct late_frame frame = {.magic = LATE_MAGIC};
		uint8_t what = input_number(&input, 1);
		frame.count = input_number(&input, what & 1 ? 4 : 1);
		frame.bytes = what & 2 ? input_number(&input, what & 4 ? 8 : 3) : (uint64_t)frame.count * PAGE;
		if (what & 8)
			frame.bytes = 0;
		/* As hear_source() checks a head before it lets a frame come. */
		if (!frame.count || frame.count > LATE_RUNS || frame.bytes > LATE_BYTES)
			break;
		size_t runs = frame.count * sizeof(struct run);
		/* Exactly as large as the frame: a read beyond it is detected. */
		char *whole = malloc(sizeof frame + runs + frame.bytes);
		struct run *run = (struct run *)(whole + sizeof frame);
		memset(whole, 0, sizeof frame + runs + frame.bytes);
		for (uint32_t k = 0; k < frame.count; k++) {
			run[k].address = what & 16 ? input_number(&input, 8) : PLACE + input_number(&input, 1) * PAGE;
			run[k].length = what & 32 ? input_number(&input, 8) : (what & 64 ? input_number(&input, 1) : 1) * PAGE;
		}
		input_take(&input, (char *)run + runs, frame.bytes < 64 ? frame.bytes : 64);
		uint64_t bytes = 0;
		int fits = 1;
		for (uint32_t k = 0; k < frame.count; k++) {
			fits &= run[k].length <= LATE_BYTES;
			bytes += run[k].length;
		}
		struct checksum sum = {{0}};
		checksum_add(&sum, run, runs);
		if (fits && frame.bytes && bytes == frame.bytes)
			for (uint64_t k = 0, offset = 0; k < frame.count; offset += run[k++].length)
				checksum_add(&sum, (char *)run + runs + offset, run[k].length);
		frame.checksum = what & 128 ? input_number(&input, 8) : checksum_value(&sum);
		memcpy(whole, &frame, sizeof frame);
		int result = take_frame(sink, (struct late_frame *)whole);
		free(whole);
		require(result <= 0 && sink->owed->left <= 48);
		if (result)
			break;
	}
	int changed = sink->changed;
	farhome_sink_free(sink);
	close(changed);
	return 0;
}
