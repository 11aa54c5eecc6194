/* Messages to and from the node daemon: msgpack, as in wire/frames.py, behind four bytes of length. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include "mosrun_message.h"

void put(struct message *message, const void *bytes, size_t size)
{
	memcpy(message->bytes + message->size, bytes, size);
	message->size += size;
}

/* How many bytes of a well-formed UTF-8 character begin there; 0: none. */
static size_t character(const unsigned char *text)
{
	size_t length = *text < 0x80 ? 1 : *text < 0xc2 ? 0 : *text < 0xe0 ? 2 : *text < 0xf0 ? 3 : *text < 0xf5 ? 4 : 0;
	for (size_t i = 1; i < length; i++)
		if ((text[i] & 0xc0) != 0x80)
			return 0;
	if ((*text == 0xe0 && text[1] < 0xa0) || (*text == 0xed && text[1] > 0x9f) || (*text == 0xf0 && text[1] < 0x90) ||
	    (*text == 0xf4 && text[1] > 0x8f))
		return 0;
	return length;
}

void put_text(struct message *message, const char *text)
{
	unsigned char *header = message->bytes + message->size;
	size_t size = 0, length;
	message->size += 3;
	for (const unsigned char *at = (const unsigned char *)text; *at; at += length ? length : 1) {
		length = character(at);
		if (size + (length ? length : 1) > LONGEST)
			break;
		put(message, length ? (const char *)at : "?", length ? length : 1);
		size += length ? length : 1;
	}
	memcpy(header, (unsigned char[]){0xda, (unsigned char)(size >> 8), (unsigned char)size}, 3);
}

void put_truth(struct message *message, const char *key, bool value)
{
	put_text(message, key);
	put(message, value ? "\xc3" : "\xc2", 1);
}

void put_pair(struct message *message, const char *key, const char *value)
{
	put_text(message, key);
	put_text(message, value);
}

/* A number or the length of a text, whose kind is the byte at `*at`. Errors: false: it is neither, or does not fit. */
static bool take(const unsigned char **at, const unsigned char *end, char *kind, uint64_t *value)
{
	unsigned char first = **at;
	static const struct {
		unsigned char byte;
		char kind;
		int width;
	} kinds[] = {{0xd9, 't', 1}, {0xda, 't', 2}, {0xcc, 'n', 1}, {0xcd, 'n', 2}, {0xce, 'n', 4}, {0xc2, 'b', 0}, {0xc3, 'b', 0}};
	(*at)++;
	if (first < 0x80)
		return *kind = 'n', *value = first, true;
	if (first >= 0xa0 && first < 0xc0) {
		*kind = 't', *value = first & 0x1f;
		return *value <= (size_t)(end - *at);
	}
	for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
		if (kinds[i].byte != first || kinds[i].width > end - *at)
			continue;
		*kind = kinds[i].kind, *value = first == 0xc3;
		for (int byte = 0; byte < kinds[i].width; byte++)
			*value = *value << 8 | *(*at)++;
		return *kind != 't' || *value <= (size_t)(end - *at);
	}
	return false;
}

/* Leaves nothing in a text that a terminal would obey: bytes below a space, and the control characters of Latin-1, as UTF-8 has them. */
static void make_printable(char *text)
{
	for (unsigned char *at = (unsigned char *)text; *at; at++)
		if (*at < ' ' || *at == 0x7f)
			*at = '?';
		else if (*at == 0xc2 && at[1] >= 0x80 && at[1] < 0xa0)
			at[0] = at[1] = '?';
}

bool understand(const unsigned char *at, const unsigned char *end, const char *text, char *sentence, size_t room, const char *number,
                int *code)
{
	bool has_sentence = false, has_code = false;
	if (at >= end || (*at & 0xf0) != 0x80)
		return false;
	for (int pairs = *at++ & 0x0f; pairs; pairs--) {
		char kind;
		uint64_t size, value;
		if (at >= end || !take(&at, end, &kind, &size) || kind != 't')
			return false;
		const unsigned char *key = at;
		at += size;
		if (at >= end || !take(&at, end, &kind, &value))
			return false;
		if (kind == 't') {
			if (size == strlen(text) && !memcmp(key, text, size)) {
				has_sentence = true;
				snprintf(sentence, room, "%.*s", (int)value, (const char *)at);
				make_printable(sentence);
			}
			at += value;
		}
		if (kind == 'n' && size == strlen(number) && !memcmp(key, number, size))
			has_code = true, *code = (int)value;
	}
	return has_sentence && has_code;
}

size_t receive(int connection, unsigned char *answer, size_t room)
{
	size_t got = 0;
	while (got < room) {
		ssize_t more = recv(connection, answer + got, room - got, 0);
		if (more < 0 && errno == EINTR)
			continue; /* stopped and continued */
		if (more <= 0)
			break;
		got += (size_t)more;
		if (got >= 4 && got - 4 >= ((size_t)answer[0] << 24 | (size_t)answer[1] << 16 | (size_t)answer[2] << 8 | answer[3]))
			break;
	}
	return got;
}
