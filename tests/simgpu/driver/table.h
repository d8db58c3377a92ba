/*
 * table.h - uthash, for a host that may have no memory left: HASH_ADD() neither ends the process nor says anything when
 * it could not enter an item. Whoever adds asks SIM_ENTERED() next.
 */
#ifndef SIM_TABLE_H
#define SIM_TABLE_H

#define HASH_NONFATAL_OOM 1
#include <uthash.h>

/* Whether an item is in a table after it was added, for items whose handle is called hh. */
#define SIM_ENTERED(item) ((item)->hh.tbl != NULL)

#endif
