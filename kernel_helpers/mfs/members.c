/* Who is in the cluster; see members.h. mosd has checked that an authority signed each line of the list before it wrote it. */
#define _GNU_SOURCE
#include "mfs/members.h"
#include "mfs/context.h"
#include "mfs/log.h"

#include <openssl/x509.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define REMOVED_MOST 1024 /* as in node/cluster/keys/removals.py */

struct removed {
	char name[MFS_NAME_MOST];
	long long second; /* certificates that are valid from before do not count */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char pki[4000];
static int serves;
static SSL_CTX *context;
static struct removed removed[REMOVED_MOST];
static unsigned removed_count;
static struct stat list_seen, certificate_seen;

static bool is_same(const struct stat *a, const struct stat *b)
{
	return a->st_ino == b->st_ino && a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
	       a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* Whether the file is another one than at the last look. */
static bool has_changed(const char *name, struct stat *seen)
{
	char path[4096];
	struct stat now = {0};

	snprintf(path, sizeof path, "%s/%s", pki, name);
	if (stat(path, &now))
		memset(&now, 0, sizeof now);
	if (is_same(&now, seen))
		return false;
	*seen = now;
	return true;
}

static void read_list(void)
{
	char path[4096], line[512];
	unsigned count = 0;

	snprintf(path, sizeof path, "%s/removed", pki);
	FILE *list = fopen(path, "re");
	if (!list)
		return; /* nobody comes off it */
	pthread_mutex_lock(&lock);
	while (count < REMOVED_MOST && fgets(line, sizeof line, list))
		count += sscanf(line, "%63s %lld", removed[count].name, &removed[count].second) == 2;
	removed_count = count;
	pthread_mutex_unlock(&lock);
	fclose(list);
}

bool mfs_members_begin(const char *directory, int is_server, char *why, size_t size)
{
	snprintf(pki, sizeof pki, "%s", directory);
	serves = is_server;
	has_changed("node.pem", &certificate_seen);
	context = mfs_context(directory, is_server, why, size);
	if (context && has_changed("removed", &list_seen))
		read_list();
	return context;
}

bool mfs_members_look(void)
{
	char why[512];

	if (has_changed("node.pem", &certificate_seen)) {
		SSL_CTX *renewed = mfs_context(pki, serves, why, sizeof why), *old = NULL;
		if (renewed) {
			pthread_mutex_lock(&lock);
			old = context;
			context = renewed;
			pthread_mutex_unlock(&lock);
			SSL_CTX_free(old);
		} else {
			mfs_log("%s", why);
		}
	}
	if (!has_changed("removed", &list_seen))
		return false;
	read_list();
	return true;
}

SSL_CTX *mfs_members_context(void)
{
	pthread_mutex_lock(&lock);
	SSL_CTX *now = context;
	SSL_CTX_up_ref(now);
	pthread_mutex_unlock(&lock);
	return now;
}

bool mfs_is_removed(const char *name, long long since)
{
	bool found = false;

	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < removed_count && !found; i++)
		found = !strcmp(removed[i].name, name) && since < removed[i].second;
	pthread_mutex_unlock(&lock);
	return found;
}

long long mfs_valid_since(const X509 *certificate)
{
	struct tm when = {0};

	return ASN1_TIME_to_tm(X509_get0_notBefore(certificate), &when) == 1 ? (long long)timegm(&when) : 0;
}
