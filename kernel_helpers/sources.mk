# The sources of each target, in folders of kernel_helpers. Included by the Makefile here and by that of the fuzzers.
LIBRARY_SOURCES := $(addprefix common/,pacing.c processor.c) \
    process/guest_memory.c $(addprefix process/injection/,batch.c call.c many_calls.c many_states.c many_stop.c memory.c requests.c wait.c) \
    $(addprefix inspection/,forks.c guest_room.c guest_signals.c sharing.c tasks.c) $(addprefix inspection/programs/,executions.c rings.c) \
    $(addprefix stream/,for_python.c receive.c records.c send.c stream.c tls.c) \
    $(addprefix pages/,history.c objects.c pack.c receive.c send.c splice.c stream.c written.c) \
    $(addprefix pages/tables/,guards.c plain.c plain_calls.c proc.c read.c scan.c uffd.c vmas.c) \
    $(addprefix postcopy/,address_space.c page_set.c receive.c send.c sink.c) \
    $(addprefix usage/,account.c account_read.c account_results.c children.c runnable.c sampler.c) \
    link/own_proc.c link/paths.c link/spin.c \
    $(addprefix link/session/,branch.c events.c life.c receive.c relay.c send.c) \
    $(addprefix link/marshal/,argument.c data_area.c frame.c marshal.c messages.c results.c shapes.c structures.c table.c vectors.c) \
    $(addprefix link/away/,calls.c classes.c clocks.c direct_calls.c life.c mapping.c remembered.c replies.c sending.c) \
    $(addprefix link/away/files/,ahead.c carried.c giving.c kept.c leaving.c names.c) $(addprefix link/away/direct/,direct_files.c direct_spans.c) $(addprefix link/away/threads/,away.c listener.c parked.c) \
    $(addprefix link/home/,ahead.c calls.c children.c finish.c launch.c life.c received.c rests.c self_signals.c suspended.c) \
    $(addprefix link/home/files/,access_time.c aside.c carry.c mounts.c names.c places.c watch.c) link/home/threads/home.c

SANDBOX_SOURCES := $(addprefix namespaces/sandbox/,create.c fail.c init.c main.c process.c requests.c root.c)

MFS_SHARED_SOURCES := common/pacing.c $(addprefix mfs/,context.c log.c members.c tls.c wire.c)
MFS_CLIENT_SOURCES := $(MFS_SHARED_SOURCES) \
    mfs/client/common/client.c $(addprefix mfs/client/,kernel_requests.c main.c supervisor.c) $(addprefix mfs/client/link/,connection.c life.c replies.c requests.c) \
    $(addprefix mfs/client/kernel/,device.c known.c memory.c notifications.c own_changes.c pages.c promises.c unread.c)
MFS_SERVER_SOURCES := $(MFS_SHARED_SOURCES) \
    $(addprefix mfs/server/,pending.c places.c server.c) \
    $(addprefix mfs/server/files/,exports.c handles.c hidden.c identity.c nodes.c opening.c paths.c reopen.c stat.c) \
    $(addprefix mfs/server/sessions/,list.c notifications.c predecessor.c relief.c request.c threads.c turns.c) \
    $(addprefix mfs/server/coherence/,leases.c marks.c pages.c promises.c remembered.c watch.c) \
    $(addprefix mfs/server/operations/,attributes.c data.c direct_files.c directories.c locks.c names.c object.c table.c xattrs.c) \
    $(addprefix mfs/server/serving/,alone.c ledger.c lifecycle.c main.c replies.c serving.c)
