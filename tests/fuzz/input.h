/* The bytes of one run, taken from the front. What there is no more of is zero: so every input means something. */
#ifndef FARHOME_FUZZ_INPUT_H
#define FARHOME_FUZZ_INPUT_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct input {
	const uint8_t *at;
	size_t left;
};

static inline void input_take(struct input *input, void *to, size_t size)
{
	size_t have = size < input->left ? size : input->left;
	if (size > have)
		memset((uint8_t *)to + have, 0, size - have);
	if (have)
		memcpy(to, input->at, have);
	input->at += have;
	input->left -= have;
}

static inline uint64_t input_number(struct input *input, size_t bytes)
{
	uint64_t value = 0;
	input_take(input, &value, bytes);
	return value;
}

#endif
