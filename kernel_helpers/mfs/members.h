/* Who is in the cluster: the list of nodes that were taken out, which mosd keeps, and keys that are renewed while a program runs. */
#ifndef MFS_MEMBERS_H
#define MFS_MEMBERS_H

#include <openssl/ssl.h>
#include <stdbool.h>
#include <stddef.h>

#define MFS_NAME_MOST 64 /* bytes of a node's name, with its NUL */

/* Reads certificates and the list in that directory; false, and the reason in `why`. */
bool mfs_members_begin(const char *directory, int is_server, char *why, size_t size);
/* Reads them anew where they have changed; whether the list has. Cheap; some times a second. */
bool mfs_members_look(void);
/* The context of now, to be given back by SSL_CTX_free. */
SSL_CTX *mfs_members_context(void);
/* Whether a certificate of that node, valid from that second on, does not count any more. */
bool mfs_is_removed(const char *name, long long since);
/* From which second on a certificate is valid. */
long long mfs_valid_since(const X509 *certificate);

#endif
