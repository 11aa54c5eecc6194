/* What all parts of mfs-client know. */
#include "mfs/client/common/client.h"

struct mfs_client_options mfs_options = {.timeout = 10000};
struct mfs_client_figures *mfs_figures;
static struct mfs_client_kept alone;
struct mfs_client_kept *mfs_kept = &alone;
