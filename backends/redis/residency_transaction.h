/* SPDX-License-Identifier: Apache-2.0 */

/*
 * residency_transaction: the commands of a report, put together between MULTI and EXEC so that all
 * of them are sent or none. It knows keys and command lines, not when they are due. Loop thread
 * only.
 */
#ifndef BACKENDS_REDIS_RESIDENCY_TRANSACTION_H
#define BACKENDS_REDIS_RESIDENCY_TRANSACTION_H

#include <stddef.h>
#include <stdint.h>

#include "backends/redis/redis_link.h"
#include "backends/redis/residency_pages.h"
#include "backends/redis/residency_wire.h"
#include "backends/runtime/buf.h"
#include "backends/runtime/must_check.h"

/* Whose keys: the caller's for the time of a call. */
struct residency_target {
    struct redis_link *link;
    const char *worker;
    struct residency_life life;
    uint32_t ttl_s; /* of pages, "out" and meta */
};

struct residency_transaction {
    const struct residency_target *target;
    struct redis_link_mark mark;
    uint32_t count; /* of commands so far: where the next one's reply will be in EXEC's list */
    int status;     /* the first error */
};

/* Begun on the stack, within one call from the loop. Errors are kept until the end. */
struct residency_transaction residency_transaction_begin(const struct residency_target *target);

/* Replies: the lease; and the last entry of "out" in a list. */
void residency_transaction_look(struct residency_transaction *transaction);

/* Page page of zeros, with its time to live. OK. */
void residency_transaction_make_page(struct residency_transaction *transaction, uint32_t page);

/* count places that follow each other in one page. The length of the page. */
void residency_transaction_set_places(struct residency_transaction *transaction,
                                      const struct residency_place *places, size_t count);

/* The entry of sequence, that of first_kept the oldest to be kept; of sequence 1: "out" is made,
 * else it must be there. The id; NIL: "out" is not there. */
void residency_transaction_add_change(struct residency_transaction *transaction, uint64_t sequence,
                                      uint64_t first_kept, const struct residency_change *change);

/* Page page has its time to live again. 1; 0: it is not there. */
void residency_transaction_renew_page(struct residency_transaction *transaction, uint32_t page);
void residency_transaction_renew_out(struct residency_transaction *transaction);

/* Three commands: who the worker is, how long that is kept, and that it is one. */
void residency_transaction_set_meta(struct residency_transaction *transaction,
                                    const struct residency_meta *meta);

/* The lease before; NIL: there was none. */
void residency_transaction_set_lease(struct residency_transaction *transaction,
                                     const struct residency_lease *lease, uint32_t lease_ms);

/* Pages [from, end) of another generation of this epoch, and its "out". */
void residency_transaction_unlink(struct residency_transaction *transaction, uint32_t generation,
                                  uint32_t from, uint32_t end);

/* on_done: EXEC's. -errno as redis_link_send(): nothing of it was sent. */
MUST_CHECK int residency_transaction_end(struct residency_transaction *transaction,
                                         redis_done_fn *on_done, void *ctx);

/* Not in a transaction: a whole page, with its time to live. */
MUST_CHECK int residency_send_page(const struct residency_target *target, uint32_t page,
                                   const uint8_t bytes[RESIDENCY_PAGE_BYTES],
                                   redis_done_fn *on_done, void *ctx);

/* Not in a transaction: nobody is to believe the worker any more. */
MUST_CHECK int residency_send_unlink_lease(const struct residency_target *target,
                                           redis_done_fn *on_done, void *ctx);

#endif
