/* SPDX-License-Identifier: Apache-2.0 */

/*
 * engine_probes: asks the engines of this node over HTTP whether they are well, what they are, how
 * large their caches are, and how busy. What they hold comes by their KV events, not from here.
 * Loop thread only.
 */
#ifndef KVTIER_ENGINE_PROBES_H
#define KVTIER_ENGINE_PROBES_H

#include <stddef.h>
#include <stdint.h>

#include "backends/io_loop.h"
#include "backends/runtime/must_check.h"
#include "backends/worker_set.h"
#include "kvtier/engine_spec.h"

struct engine_probes;

/* index: of the spec. Not from within engine_probes_*(). */
struct engine_probes_callbacks {
    /* What it says of itself was renewed, or its state changed: worker->report, ->engine, ->state.
     * model: the first that it lists; "": it has listed none. */
    void (*on_report)(void *ctx, size_t index, const struct worker *worker, const char *model);
};

struct engine_probes_config {
    uint64_t interval_ms;
    const char *authorization; /* sent along; NULL: none; borrowed; a secret */
};

/* Starts to ask; names are resolved meanwhile. Borrows specs and callbacks until it is closed. */
struct engine_probes *engine_probes_create(struct io_loop *io, const struct engine_spec *specs,
                                           size_t count, struct engine_probes_config config,
                                           const struct engine_probes_callbacks *callbacks,
                                           void *ctx);

/* NULLs *probes, which may be NULL. It is gone when the loop has closed its handles. */
void engine_probes_close(struct engine_probes **probes);

#endif
