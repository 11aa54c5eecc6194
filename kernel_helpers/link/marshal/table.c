/* Which entry of calls.table a call has, by its number and arguments. */
#include "link/link.h"
#include "calls.inc"

static const struct call_entry go_home = {.class = CLASS_GO_HOME};

const struct call_entry *link_entry(long number, const uint64_t arguments[6])
{
	if (number < 0 || number >= (long)(sizeof call_rows / sizeof *call_rows) || !call_rows[number].name)
		return &go_home;
	const struct call_row *row = &call_rows[number];
	for (unsigned i = 0; i < row->variants; i++) {
		const struct call_variant *v = &call_variants[row->first_variant + i];
		if ((arguments[v->argument] & v->mask) == v->value && (arguments[v->also] & v->also_mask) == v->also_value)
			return &v->entry;
	}
	return &row->entry;
}

int link_class(long number, const uint64_t arguments[6])
{
	return link_entry(number, arguments)->class;
}

/* Classes whose calls home makes. */
static const unsigned char at_home[] = {
	[CLASS_FORWARD] = 1, [CLASS_BOTH] = 1,   [CLASS_END] = 1, [CLASS_SUM] = 1,   [CLASS_EXECUTE] = 1,
	[CLASS_BIND] = 1,    [CLASS_RIGHTS] = 1, [CLASS_IDS] = 1, [CLASS_WATCH] = 1, [CLASS_KEYS] = 0,
};

int link_forwardable(long number)
{
	if (number < 0 || number >= (long)(sizeof call_rows / sizeof *call_rows) || !call_rows[number].name)
		return 0;
	const struct call_row *row = &call_rows[number];
	int yes = at_home[row->entry.class];
	for (unsigned i = 0; i < row->variants && !yes; i++)
		yes = at_home[call_variants[row->first_variant + i].entry.class];
	return yes;
}
