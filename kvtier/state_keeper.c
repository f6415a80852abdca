/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/state_keeper.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "backends/runtime/buf.h"
#include "backends/runtime/clock.h"
#include "backends/runtime/log.h"
#include "kvtier/identity/alignment_state.h"
#include "kvtier/state_file.h"

/*
 * DESIGN
 *
 * What was learned of text and tokens is kept under the fingerprint and the model that the engine
 * lists. Its bytes are written by the loop, which alone may look at the alignment, in slices
 * between its other work; the digest and the file by a thread, because disks may be slow. Taken up
 * it claims nothing by itself; what the engine replays does.
 */

enum {
    STATE_BYTES_MAX = 1 << 30,
    SLICE_BLOCKS = 4096, /* 0.25 ms, 0.9 at most, of a million; a chain is never cut, if longer */
};

/* A state on its way to the disk. */
struct state_save {
    uv_work_t work;
    struct state_keeper *keeper;
    struct buf bytes;
    uint64_t joins; /* what had been learned when it began */
    uint64_t loop_us;
    bool is_whole; /* a thread writes it */
    int status;
};

void state_keeper_init(struct state_keeper *keeper, struct state_keeper_config config)
{
    *keeper = (struct state_keeper){.config = config};
}

uint64_t state_keeper_worker(const struct state_keeper *keeper)
{
    const char *name = keeper->config.worker;

    return digest_64(keeper->config.secret, DIGEST_ALIGNMENT, name, strlen(name));
}

static uint64_t identity_of(const struct state_keeper *keeper, const char *model)
{
    struct digest digest;

    digest_begin(&digest, keeper->config.secret, DIGEST_ALIGNMENT);
    digest_field_u64(&digest, 1, keeper->config.fingerprint);
    digest_field(&digest, 2, model, strlen(model));
    return digest_end(&digest);
}

bool state_keeper_take_up(struct state_keeper *keeper, const char *model)
{
    struct buf bytes;
    int status;

    if (keeper->identity != 0 || model[0] == '\0' || keeper->config.dir[0] == '\0')
        return false;
    keeper->identity = identity_of(keeper, model);
    keeper->pace.begun_ms = io_loop_now_ms(keeper->config.io);
    buf_init(&bytes, STATE_BYTES_MAX);
    status = state_file_read(keeper->config.dir, state_keeper_worker(keeper), &bytes);
    if (status == 0)
        status = alignment_load(keeper->config.alignment, keeper->identity, buf_slice(&bytes));
    if (status == 0)
        LOG(LOG_INFO, "state_taken_up", log_text("worker", keeper->config.worker),
            log_u64("bytes", buf_len(&bytes)),
            log_u64("text_blocks", keeper->config.alignment->text.node_count));
    else if (status != -ENOENT) {
        keeper->stats.failed_total++;
        LOG(LOG_WARN, "state_refused", log_text("worker", keeper->config.worker),
            log_text("why", status == -EPROTO
                                ? "it is of another model, secret or version, or damaged"
                                : strerror(-status)));
    }
    buf_release(&bytes);
    return true;
}

static void note_saved(struct state_keeper *keeper, int status)
{
    bool had_failed = keeper->has_failed;

    keeper->stats.saved_total += status == 0;
    keeper->stats.failed_total += status < 0;
    keeper->has_failed = status < 0;
    if (status < 0 && !had_failed)
        LOG(LOG_WARN, "state_not_saved", log_text("worker", keeper->config.worker),
            log_text("why", strerror(-status)));
}

static void write_state(uv_work_t *work)
{
    struct state_save *save = work->data;

    save->status = alignment_save_seal(save->keeper->config.secret, &save->bytes, 0);
    if (save->status == 0)
        save->status = state_file_write(save->keeper->config.dir, state_keeper_worker(save->keeper),
                                        buf_slice(&save->bytes));
}

/* At the end there is nobody to keep waiting. */
static void save_last(struct state_keeper *keeper)
{
    struct buf bytes;
    int status;

    if (keeper->identity == 0)
        return;
    buf_init(&bytes, STATE_BYTES_MAX);
    status = alignment_save(keeper->config.alignment, keeper->identity, &bytes);
    if (status == 0)
        status =
            state_file_write(keeper->config.dir, state_keeper_worker(keeper), buf_slice(&bytes));
    note_saved(keeper, status);
    buf_release(&bytes);
}

static void finish_close(struct state_keeper *keeper)
{
    save_last(keeper);
    keeper->on_closed(keeper->closed_ctx);
}

static void drop_save(struct state_keeper *keeper)
{
    buf_release(&keeper->save->bytes);
    free(keeper->save);
    keeper->save = NULL;
}

static void end_save(struct state_keeper *keeper, int status)
{
    const struct state_save *save = keeper->save;

    note_saved(keeper, status);
    if (status == 0)
        keeper->pace.joins = save->joins;
    keeper->pace.bytes = buf_len(&save->bytes);
    keeper->pace.loop_us = save->loop_us;
    drop_save(keeper);
}

static void on_state_written(uv_work_t *work, int status)
{
    struct state_save *save = work->data;
    struct state_keeper *keeper = save->keeper;

    (void)status; /* it is never cancelled */
    end_save(keeper, save->status);
    if (keeper->on_closed != NULL)
        finish_close(keeper);
}

static void begin_save(struct state_keeper *keeper)
{
    struct state_save *save = calloc(1, sizeof *save);
    int status;

    if (save == NULL)
        abort(); /* bookkeeping */
    save->keeper = keeper;
    save->joins = keeper->config.alignment->stats.joined;
    save->work.data = save;
    buf_init(&save->bytes, STATE_BYTES_MAX);
    keeper->save = save;
    keeper->pace.begun_ms = io_loop_now_ms(keeper->config.io);
    status = alignment_save_begin(keeper->config.alignment, keeper->identity, &save->bytes);
    if (status < 0)
        end_save(keeper, status);
}

static void save_slice(struct state_keeper *keeper)
{
    struct state_save *save = keeper->save;
    const uint64_t begun_us = clock_now_us();
    int status = alignment_save_step(keeper->config.alignment, SLICE_BLOCKS);

    save->loop_us += clock_now_us() - begun_us;
    if (status == 1)
        return;
    save->is_whole = true;
    if (status == 0)
        status =
            uv_queue_work(&keeper->config.io->loop, &save->work, write_state, on_state_written);
    if (status < 0)
        end_save(keeper, status);
}

bool state_keeper_save_if_due(struct state_keeper *keeper)
{
    if (keeper->save == NULL && keeper->identity != 0 && keeper->on_closed == NULL &&
        state_pace_is_due(&keeper->pace, io_loop_now_ms(keeper->config.io),
                          keeper->config.alignment->stats.joined))
        begin_save(keeper);
    if (keeper->save != NULL && !keeper->save->is_whole)
        save_slice(keeper);
    return keeper->save != NULL && !keeper->save->is_whole;
}

void state_keeper_close(struct state_keeper *keeper, void (*on_closed)(void *ctx), void *ctx)
{
    assert(on_closed != NULL);

    keeper->on_closed = on_closed;
    keeper->closed_ctx = ctx;
    if (keeper->save != NULL && !keeper->save->is_whole) { /* the last one says all that it would */
        alignment_save_abandon(keeper->config.alignment);
        drop_save(keeper);
    }
    if (keeper->save == NULL)
        finish_close(keeper);
}
