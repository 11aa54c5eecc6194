# The sources of each target, in folders of kernel_helpers. Included by the Makefile here and by that of the fuzzers.
LIBRARY_SOURCES := $(addprefix common/,pacing.c processor.c) \
    $(addprefix process/,guest_memory.c inject.c inject_many.c) \
    $(addprefix inspection/,forks.c guest_room.c guest_signals.c sharing.c tasks.c) \
    $(addprefix stream/,stream.c tls.c) \
    $(addprefix pages/,history.c objects.c pack.c receive.c send.c splice.c stream.c written.c) \
    $(addprefix pages/tables/,guards.c plain.c plain_calls.c proc.c read.c scan.c uffd.c vmas.c) \
    $(addprefix postcopy/,address_space.c page_set.c receive.c send.c) \
    $(addprefix usage/,account.c children.c runnable.c sampler.c) \
    link/own_proc.c link/spin.c \
    $(addprefix link/session/,events.c life.c receive.c relay.c send.c) \
    $(addprefix link/marshal/,argument.c data_area.c frame.c marshal.c messages.c results.c shapes.c structures.c table.c vectors.c) \
    $(addprefix link/away/,away.c calls.c classes.c clocks.c direct_calls.c direct_files.c life.c listener.c parked.c replies.c) \
    $(addprefix link/home/,calls.c children.c finish.c home.c launch.c life.c received.c rests.c self_signals.c suspended.c)

SANDBOX_SOURCES := $(addprefix namespaces/sandbox/,create.c fail.c init.c main.c process.c requests.c root.c)

MFS_SHARED_SOURCES := common/pacing.c $(addprefix mfs/,context.c log.c members.c tls.c wire.c)
MFS_CLIENT_SOURCES := $(MFS_SHARED_SOURCES) \
    $(addprefix mfs/client/,client.c device.c keeper.c kernel_requests.c known.c link.c main.c notifications.c own_changes.c) \
    $(addprefix mfs/client/,pages.c promises.c unread.c)
MFS_SERVER_SOURCES := $(MFS_SHARED_SOURCES) \
    $(addprefix mfs/server/,lobby.c places.c server.c) \
    $(addprefix mfs/server/files/,exports.c handles.c hidden.c identity.c nodes.c opening.c paths.c reopen.c stat.c) \
    $(addprefix mfs/server/sessions/,list.c notifications.c predecessor.c relief.c request.c threads.c turns.c) \
    $(addprefix mfs/server/coherence/,leases.c marks.c pages.c promises.c remembered.c watch.c) \
    $(addprefix mfs/server/operations/,attributes.c data.c direct_files.c directories.c locks.c names.c object.c table.c xattrs.c) \
    $(addprefix mfs/server/serving/,alone.c ledger.c life.c main.c replies.c serving.c)
