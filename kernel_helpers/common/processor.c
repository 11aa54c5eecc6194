/* What the kernel has switched on of the processor's extended state: for engine/leaving/processor.py. */
#include <cpuid.h>
#include <stdint.h>

#define OSXSAVE (1u << 27)

/* XCR0 and the bytes that XSAVE writes for it, which is also what a signal frame holds; 0 and 512 without XSAVE. */
void processor_state(uint64_t *xcr0, uint32_t *size)
{
	unsigned a, b, c, d;
	*xcr0 = 0;
	*size = 512;
	if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & OSXSAVE))
		return;
	__asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
	*xcr0 = (uint64_t)d << 32 | a;
	if (__get_cpuid_count(13, 0, &a, &b, &c, &d))
		*size = b;
}

/* Where a component (its bit in XCR0) lies in what XSAVE writes, and how long it is; both 0: it is not there. */
void processor_component(uint32_t bit, uint32_t *offset, uint32_t *size)
{
	unsigned a, b, c, d;
	*offset = *size = 0;
	if (bit < 2 || bit > 62 || !__get_cpuid_count(13, bit, &a, &b, &c, &d))
		return;
	*offset = b;
	*size = a;
}
