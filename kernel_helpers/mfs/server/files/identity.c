/* Threads of mfs-server act as the user of the request: file-system user, group and groups, and no capability unless it is root.
 *
 * Root of a peer is nobody here, unless the owner says otherwise: neither the user, nor group 0, nor the groups that the system has for itself
 * (shadow, disk) count for more than the node's own list of users says.
 *
 * The groups are those that the user has on this node. What the caller lacks on its own node has been refused there already, since its
 * kernel checks too (default_permissions): nobody gets more than both nodes allow. */
#define _GNU_SOURCE
#include "mfs/log.h"
#include "mfs/members.h"
#include "mfs/server/files/identity.h"

#include <sys/stat.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <pwd.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define GROUPS_MOST 1024
#define KNOWN 64
#define NOBODY 65534u
#define SYSTEM_GROUPS 100 /* groups below are the system's own, the same on all nodes: their members can do more than other users */
#define TRUSTED 64
#define GOOD_FOR 10000 /* ms for which a user's groups are not asked again */

/* What root of a peer may, below the exports: what root may with files, no more. */
static const uint64_t as_root = 1ull << CAP_CHOWN | 1ull << CAP_DAC_OVERRIDE | 1ull << CAP_DAC_READ_SEARCH | 1ull << CAP_FOWNER |
                                1ull << CAP_FSETID | 1ull << CAP_SETFCAP | 1ull << CAP_MKNOD | 1ull << CAP_LINUX_IMMUTABLE;
static const uint64_t to_change = 1ull << CAP_SETUID | 1ull << CAP_SETGID;
static const uint64_t for_ourselves = 1ull << CAP_LEASE;

struct user {
	uint32_t uid;
	long long asked;
	int count;
	gid_t groups[GROUPS_MOST];
};

static struct user *known[KNOWN];
static pthread_mutex_t known_lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local uint32_t now_uid, now_gid;
static _Thread_local bool reduced; /* capabilities are fewer than root's */
static _Thread_local bool trusts;  /* root of whom this thread serves is root here */
static char trusted[TRUSTED][MFS_NAME_MOST];
static unsigned trusted_count;
static bool trusts_all;

static int set_capabilities(uint64_t effective)
{
	uint64_t permitted = as_root | to_change | for_ourselves;
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2] = {
		{.effective = (uint32_t)effective, .permitted = (uint32_t)permitted},
		{.effective = (uint32_t)(effective >> 32), .permitted = (uint32_t)(permitted >> 32)},
	};

	return syscall(SYS_capset, &header, data) ? -errno : 0;
}

void mfs_root_count(const char *peer)
{
	if (!peer)
		trusts_all = true;
	else if (trusted_count < TRUSTED)
		snprintf(trusted[trusted_count++], MFS_NAME_MOST, "%s", peer);
}

bool mfs_root_counts(const char *peer)
{
	bool found = trusts_all;

	for (unsigned i = 0; i < trusted_count && !found; i++)
		found = !strcmp(trusted[i], peer);
	return found;
}

int mfs_identity_begin(bool root_counts)
{
	gid_t none[1];

	trusts = root_counts;

	if (unshare(CLONE_FS)) /* a umask of its own */
		return -errno;
	umask(0);
	/* The thread that created this one may have been acting as another user. */
	if (syscall(SYS_setgroups, 0, none))
		return -errno;
	syscall(SYS_setfsuid, 0);
	syscall(SYS_setfsgid, 0);
	now_uid = now_gid = 0;
	reduced = false;
	return set_capabilities(as_root | to_change | for_ourselves);
}

void mfs_give_up_lease(int fd)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2];

	if (syscall(SYS_capget, &header, data))
		return;
	uint64_t effective = data[0].effective | (uint64_t)data[1].effective << 32;
	bool lacks = (effective & for_ourselves) != for_ourselves;
	if (lacks)
		set_capabilities(effective | for_ourselves);
	fcntl(fd, F_SETLEASE, F_UNLCK);
	if (lacks)
		set_capabilities(effective);
}

static int ask_groups(uint32_t uid, gid_t *groups)
{
	char text[8192];
	struct passwd entry, *found = NULL;
	int count = GROUPS_MOST;

	if (getpwuid_r(uid, &entry, text, sizeof text, &found) || !found)
		return 0;
	return getgrouplist(entry.pw_name, entry.pw_gid, groups, &count) < 0 ? GROUPS_MOST : count;
}

/* This thread's groups become those; of them none but the user's own, if the peer is not trusted. */
static int set_groups(const gid_t *groups, int count)
{
	gid_t kept[GROUPS_MOST];
	int size = 0;

	for (int i = 0; i < count; i++)
		if (groups[i] || trusts)
			kept[size++] = groups[i];
	return syscall(SYS_setgroups, size, kept) ? -errno : 0;
}

/* What is known of the user, under known_lock; NULL: there is no memory. */
static struct user *look_up(uint32_t uid)
{
	struct user **slot = &known[uid % KNOWN];
	long long now = mfs_now();

	pthread_mutex_lock(&known_lock);
	if (*slot && (*slot)->uid == uid && now - (*slot)->asked <= GOOD_FOR)
		return *slot;
	pthread_mutex_unlock(&known_lock);
	struct user *asked = malloc(sizeof *asked);
	if (asked) {
		asked->uid = uid;
		asked->asked = now;
		asked->count = ask_groups(uid, asked->groups); /* may take its time: a directory service */
	}
	pthread_mutex_lock(&known_lock);
	if (asked) {
		free(*slot);
		*slot = asked;
	}
	return asked;
}

/* This thread's groups become those of the user. */
static int take_groups(uint32_t uid)
{
	if (uid == NOBODY)
		return set_groups(NULL, 0);
	struct user *user = look_up(uid);
	int result = user ? set_groups(user->groups, user->count) : -ENOMEM;
	pthread_mutex_unlock(&known_lock);
	return result;
}

static bool is_in_group(uint32_t uid, uint32_t gid)
{
	struct user *user = look_up(uid);
	bool found = false;

	for (int i = 0; user && i < user->count && !found; i++)
		found = user->groups[i] == gid;
	pthread_mutex_unlock(&known_lock);
	return found;
}

bool mfs_squash(bool root_counts, uint32_t *uid, uint32_t *gid)
{
	bool is_root = !root_counts && !*uid;

	if (is_root)
		*uid = NOBODY;
	if (!root_counts && (!*gid || (*gid < SYSTEM_GROUPS && !is_in_group(*uid, *gid))))
		*gid = NOBODY;
	return is_root;
}

void mfs_be_self(void)
{
	if (!now_uid && !now_gid && !reduced)
		return;
	syscall(SYS_setfsuid, 0);
	syscall(SYS_setfsgid, 0);
	syscall(SYS_setgroups, 0, NULL);
	set_capabilities(as_root | to_change | for_ourselves);
	now_uid = now_gid = 0;
	reduced = false;
}

int mfs_assume(uint32_t uid, uint32_t gid)
{
	if (uid == (uint32_t)-1 || gid == (uint32_t)-1)
		return -EPERM;
	if (!uid && !gid) {
		mfs_be_self(); /* whose capabilities are root's with files, and whose groups do not matter beside them */
		return 0;
	}
	if (reduced && now_uid == uid && now_gid == gid)
		return 0;
	mfs_be_self();
	int result = take_groups(uid);
	if (!result)
		result = set_capabilities(uid ? to_change : as_root | to_change);
	if (!result) {
		syscall(SYS_setfsgid, gid);
		syscall(SYS_setfsuid, uid);
		/* There is no other way to learn whether they did it. */
		if ((uint32_t)syscall(SYS_setfsuid, -1) != uid || (uint32_t)syscall(SYS_setfsgid, -1) != gid)
			result = -EPERM;
	}
	now_uid = uid;
	now_gid = gid;
	reduced = true;
	if (result)
		mfs_be_self();
	return result;
}

void mfs_without_fsetid(void)
{
	set_capabilities((now_uid ? 0 : as_root & ~(1ull << CAP_FSETID)) | to_change);
	now_uid = now_uid ? now_uid : (uint32_t)-2; /* whatever is assumed next is assumed anew */
	reduced = true;
}
