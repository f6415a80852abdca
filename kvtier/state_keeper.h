/* SPDX-License-Identifier: Apache-2.0 */

/*
 * state_keeper: keeps what one worker's alignment has learned over a restart of the agent: takes it
 * up as soon as the engine's model is known, saves it from time to time, and at the end. Loop
 * thread only; files are written by a thread of libuv's.
 */
#ifndef KVTIER_STATE_KEEPER_H
#define KVTIER_STATE_KEEPER_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/io_loop.h"
#include "kvtier/identity/alignment.h"
#include "kvtier/state_pace.h"

struct state_save;

/* All borrowed until close. */
struct state_keeper_config {
    struct io_loop *io;
    struct alignment *alignment;
    const char *dir;       /* "": nothing is kept */
    const char *worker;    /* its name */
    const uint8_t *secret; /* DIGEST_SECRET_BYTES */
    uint64_t fingerprint;
};

struct state_keeper_stats {
    uint64_t saved_total;
    uint64_t failed_total; /* times that it could not be saved, or was not taken up */
};

struct state_keeper {
    struct state_keeper_config config;
    uint64_t identity;       /* 0: the model is not known, so there is no state to keep */
    struct state_pace pace;  /* of the last save */
    struct state_save *save; /* the one that is under way, or NULL */
    bool has_failed;         /* to save, the last time */
    struct state_keeper_stats stats;
    void (*on_closed)(void *ctx); /* NULL: not closing */
    void *closed_ctx;
};

void state_keeper_init(struct state_keeper *keeper, struct state_keeper_config config);

/* The engine's model is this one. True: the first time, in which the alignment takes up what was
 * kept under it, if there is something. */
bool state_keeper_take_up(struct state_keeper *keeper, const char *model);

/* What the worker is called in names of files. */
uint64_t state_keeper_worker(const struct state_keeper *keeper);

enum { STATE_KEEPER_STEP_MS = 5 };

/* Saves what was learned when state_pace says so, a slice of it with each call, of about a
 * quarter of a millisecond. True: the next slice is due in STATE_KEEPER_STEP_MS. */
bool state_keeper_save_if_due(struct state_keeper *keeper);

/* Saves once more, and calls on_closed: at once, or by the loop when a thread still writes. */
void state_keeper_close(struct state_keeper *keeper, void (*on_closed)(void *ctx), void *ctx);

#endif
