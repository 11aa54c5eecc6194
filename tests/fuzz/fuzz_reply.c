/* marshal_call() and away_take_reply(): calls as a hostile guest may make them, and REPLYs as a hostile home may send them. What is marshalled
 * has to be what home takes: each bound that home_take_call() checks is checked here. */
#define _GNU_SOURCE
#include "link/away/threads/parts.h"
#include "guest.h"
#include "link_session.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define TID 7
#define CALLS 8

int away_add_thread(struct away *a, int host_tid, int tid);

static struct away away;
static pid_t guest;

/* Ends with the line that says what does not hold. */
#define require(holds) ((holds) ? (void)0 : (fprintf(stderr, "line %d: %s\n", __LINE__, #holds), abort()))

static void check(const struct marshalled *m)
{
	const struct call *call = &m->call;
	uint64_t total = 0;
	require(call->image <= call->area && call->area <= SLOT_DATA && !(call->offsets >> 6));
	require(call->relocations <= RELOCATIONS_LIMIT && call->outs <= OUTS_LIMIT);
	for (int i = 0; i < 6; i++)
		require(!(call->offsets >> i & 1) || call->arguments[i] <= call->area);
	for (uint32_t i = 0; i < call->outs; i++) {
		require(m->outs[i].offset <= call->area && m->outs[i].length <= call->area - m->outs[i].offset);
		total += m->outs[i].length;
	}
	require(total <= SLOT_DATA);
	for (uint32_t i = 0; i < call->relocations; i++) {
		uint64_t value;
		require(call->image >= 8 && m->relocations[i] <= call->image - 8);
		memcpy(&value, m->image + m->relocations[i], 8);
		require(value <= call->area);
	}
	if (call->place_argument != NO_PLACE)
		require(call->place_argument < NO_PLACE && call->offsets >> call->place_argument & 1 &&
		        call->place_length <= call->area - call->arguments[call->place_argument]);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc, (void)argv;
	guest = guest_begin();
	away.threads = calloc(16, sizeof *away.threads);
	away.listener = -1;
	away.frames = 1;
	pthread_mutex_init(&away.lock, NULL);
	away.session = session_new(away_take_reply, &away, -1);
	away.room = guest_room_new();
	away.carried = carried_new(away.session);
	require(away.carried && away.threads && away.room && away.session && !away_add_thread(&away, guest, TID));
	return 0;
}

/* An argument: a number, or an address in the guest's memory, near an end of it every now and then. */
static uint64_t argument(struct input *input)
{
	uint8_t kind = input_number(input, 1);
	if (kind < 64)
		return input_number(input, 8);
	if (kind < 128)
		return input_number(input, 2);
	if (kind < 200)
		return GUEST_MEMORY + input_number(input, 2) * 8;
	return GUEST_MEMORY + (kind & 1 ? GUEST_BYTES - input_number(input, 1) : input_number(input, 1));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input input = {data, size};
	struct guest_thread *t = away.threads[0];
	struct frame frame = {.kind = FRAME_REPLY, .tid = TID};
	uint64_t arguments[6];
	memset((void *)GUEST_MEMORY, 0, 4096);
	t->m.room = away.room;
	for (int i = 0; i < CALLS && input.left; i++) {
		uint8_t what = input_number(&input, 1);
		long number = (long)input_number(&input, 2) % 480;
		for (int k = 0; k < 6; k++)
			arguments[k] = argument(&input);
		/* Structures that pointers lead to: words, some of which are pointers again. */
		uint64_t *words = (uint64_t *)GUEST_MEMORY;
		for (unsigned k = 0; k < (what & 31u); k++)
			words[input_number(&input, 1)] = argument(&input);
		const struct call_entry *entry = link_entry(number, arguments);
		if (!link_forwardable(number) || marshal_call(&t->m, guest, entry, number, arguments))
			continue;
		check(&t->m);
		const char *path = marshal_path(&t->m, entry);
		uint32_t id;
		if (path)
			own_proc_path(path, &id);
		if (path && what & 0x20 && !marshal_rename(&t->m, entry, "/proc/self/another/name"))
			check(&t->m);
		t->class = entry->class;
		t->row = away_class(t->class);
		t->state = SENT_HOME;
		if (away_send(&away, t))
			continue;
		frame.kind = what & 0x10 ? FRAME_RECALL : FRAME_REPLY;
		away.session->input = input;
		away.session->is_broken = 0;
		struct reply reply;
		struct input ahead = input;
		input_take(&ahead, &reply, sizeof reply);
		frame.length = what & 0x40 ? input_number(&away.session->input, 4)
		                           : sizeof reply + 4 * (size_t)(reply.outs % 8) +
		                                     (what & 0x80 ? input_number(&away.session->input, 2) : 0);
		int goes_on = link_session_take(away.session, &frame);
		input = away.session->input;
		int64_t value;
		for (unsigned k = 0; k < (what & 3u); k++)
			carried_answers(away.carried, guest, (long)input_number(&input, 1), arguments, &value);
		if (!goes_on)
			break;
	}
	/* A thread's buffers are its own from call to call; here each input begins alike. */
	marshal_free(&t->m);
	memset(&t->m, 0, sizeof t->m);
	return 0;
}
