/* SPDX-License-Identifier: Apache-2.0 */

/*
 * connector_link: an engine's two connections to the agent of its node, in the protocol of
 * kvtier/connector/ipc_wire.h: registers, asks with deadlines, and registers anew whenever the
 * agent is away, restarted, slow or wrong. It knows neither requests nor pages. Loop thread only.
 */
#ifndef TESTS_SIM_ENGINE_CONNECTOR_LINK_H
#define TESTS_SIM_ENGINE_CONNECTOR_LINK_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "backends/runtime/must_check.h"
#include "kvtier/connector/ipc_wire.h"

struct connector_link;
struct connector_stats;
struct page_memory;

/* Called from the loop, and from within connector_link_save(). May not close the link. */
struct connector_link_callbacks {
    void (*on_loaded)(void *ctx, uint64_t job, uint32_t block_count);
    /* The agent has let go of the memory as it was given in that registration: loads of it that
     * have no answer by now get none, and nobody writes into their blocks any more. */
    void (*on_left)(void *ctx, uint32_t registration);
    /* LOOKUP, LOAD or SAVE went out, and nothing was waited for yet: a place to die. */
    void (*on_sent)(void *ctx, enum ipc_kind kind);
};

/* Borrows all of it. */
struct connector_link_config {
    uv_loop_t *loop;
    const char *path;   /* of the agent's socket */
    const char *worker; /* what the agent calls this engine */
    const char *model;  /* what says which weights and which layout */
    uint32_t block_tokens;
    uint32_t lookup_ms; /* an answer that takes longer is a miss */
    const struct page_memory *memory;
    struct connector_stats *stats;
    const struct connector_link_callbacks *callbacks;
    void *ctx;
};

/* Begins to register. */
struct connector_link *connector_link_create(const struct connector_link_config *config);

/* The number of the registration that holds now; each has another one. 0: there is none, and all
 * that follows does nothing and returns -ENOTCONN. */
uint32_t connector_link_registration(const struct connector_link *link);

/* OPEN, TOKENS, TAKE, CLOSE: what has no answer. */
MUST_CHECK int connector_link_tell(struct connector_link *link, const struct ipc_message *message);

/* -ETIMEDOUT: no answer in time; the question is over. */
MUST_CHECK int connector_link_look_up(struct connector_link *link, struct ipc_lookup lookup,
                                      struct ipc_found *found);

/* on_loaded or on_left will come. */
MUST_CHECK int connector_link_load(struct connector_link *link, const struct ipc_load *load);

/* Waits for the answer as long as the agent asked to be waited for; -ETIMEDOUT: that was too long,
 * and this registration has ended. */
MUST_CHECK int connector_link_save(struct connector_link *link, const struct ipc_save *save,
                                   struct ipc_saved *saved);

/* How long the calls since the last asking have waited. */
uint64_t connector_link_take_wait_us(struct connector_link *link);

/* Closes its handles; destroy it when the loop has ended. */
void connector_link_close(struct connector_link *link);
void connector_link_destroy(struct connector_link *link);

#endif
