/* SPDX-License-Identifier: Apache-2.0 */

#include "router/join/token_asker.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "backends/http/worker_call.h"
#include "backends/runtime/list.h"
#include "backends/thread_pool.h"
#include "router/join/tail_table.h"

/*
 * DESIGN
 *
 *   ask --> WAITING --> CALLING --> READING --+--> answered
 *                          ^                  |
 *                          '---- the tail ----'      (ids: ask --> READING --> answered)
 *
 * A question is the engine's extra work, so it may be refused at any time: an anchor that is
 * missing costs exactness for one prompt, no request. Few calls run at a time, so that tokenizing
 * never takes more of the engine's front end than a request or two; a burst waits, for a short
 * while.
 *
 * Where the template's tail is not known, the same body is asked about once more with
 * "add_generation_prompt": false: the difference is the tail.
 *
 * What a worker answered is held against the kind of question: one engine may tokenize texts and
 * know nothing of chats, or of rendering. "No such endpoint" is believed for a minute, other
 * failures in a row for ten seconds.
 */
enum {
    CALL_MS = 5000,
    WAIT_MS = 3000,
    CALL_COUNT_MAX = 4,        /* running at one worker */
    WAIT_COUNT_MAX = 64,       /* waiting for one worker */
    BODY_BYTES_MAX = 64 << 20, /* of all bodies kept */
    UNABLE_MS = 60000,
    FAILED_MS = 10000,
    FAILED_COUNT_MAX = 3,
    INLINE_BYTES_MAX = 128 << 10, /* read on the loop: 0.3 ms */
    ANSWER_BYTES_MAX = 32 << 20,
    WORKER_WAITING_MAX = 64, /* requests that wait in the engine: it has no time for questions */
};

static const struct slice no_tail = SLICE("\"add_generation_prompt\":false,");

/* How asking went. */
struct ability {
    uint32_t failed_count; /* in a row */
    uint64_t until_ms;     /* not asked again before */
    enum anchor_outcome why_not;
};

struct asked_worker {
    uint64_t id; /* whom the rest is about; 0: nobody */
    uint32_t call_count;
    struct list waiting; /* inquiries, oldest first */
    double tokens;       /* of the rate's bucket */
    uint64_t filled_ms;
    struct ability abilities[ANCHOR_TARGET_COUNT];
};

enum stage { STAGE_WAITING, STAGE_CALLING, STAGE_READING };

/* A question under way. */
struct inquiry {
    struct list_node in_list;  /* of waiting or active */
    struct token_asker *asker; /* NULL: given up while a thread reads for it */
    enum stage stage;
    struct deadline wait;
    uint64_t worker_id;
    uint32_t worker_index;
    enum anchor_source source;
    enum anchor_target target;
    struct token_naming naming;
    uint64_t tail_name; /* 0: there is no tail */
    bool may_ask_tail;
    bool must_ask_tail;
    bool is_tail; /* the second call is under way */
    size_t splice_at;
    struct buf body;
    struct worker_call *call;
    /* What is being read, by whom, and what came of it. */
    struct thread_job job;
    struct buf reply;
    int status;
    struct token_anchor read;
    struct token_anchor anchor; /* of the first call */
    token_answered_fn *on_answered;
    void *ctx;
};

struct token_asker {
    struct token_asker_config config;
    struct io_deadlines calls;
    struct io_deadlines waits;
    struct list active; /* CALLING and READING */
    struct tail_table tails;
    struct token_asker_stats stats;
    struct asked_worker workers[WORKER_COUNT_MAX];
};

static uint64_t now_ms_of(const struct token_asker *asker)
{
    return io_loop_now_ms(asker->config.io);
}

static struct asked_worker *asked_at(struct token_asker *asker, uint32_t index)
{
    return &asker->workers[index];
}

/* ---- ends ---- */

static void free_inquiry(struct inquiry *inquiry)
{
    buf_release(&inquiry->body);
    buf_release(&inquiry->reply);
    free(inquiry);
}

static void start_waiting(struct token_asker *asker, uint32_t index);

static void leave_list(struct inquiry *inquiry)
{
    struct token_asker *asker = inquiry->asker;

    deadline_disarm(&inquiry->wait);
    if (inquiry->stage == STAGE_WAITING) {
        list_remove(&asked_at(asker, inquiry->worker_index)->waiting, &inquiry->in_list);
        asker->stats.wait_count--;
    } else {
        list_remove(&asker->active, &inquiry->in_list);
    }
}

/* Answers, which is the end of it. */
static void answer(struct inquiry *inquiry, enum anchor_outcome outcome, uint32_t tail_tokens)
{
    const struct token_answer answer = {outcome, inquiry->anchor, tail_tokens};
    struct token_asker *asker = inquiry->asker;

    leave_list(inquiry);
    asker->stats.body_bytes -= buf_len(&inquiry->body);
    inquiry->on_answered(inquiry->ctx, &answer);
    free_inquiry(inquiry);
}

/* ---- what a worker can do ---- */

static void note_failure(struct inquiry *inquiry, bool is_unable)
{
    struct asked_worker *asked = asked_at(inquiry->asker, inquiry->worker_index);
    struct ability *ability = &asked->abilities[inquiry->target];
    uint64_t now_ms = now_ms_of(inquiry->asker);

    inquiry->asker->stats.failed_total++;
    if (asked->id != inquiry->worker_id)
        return;
    if (is_unable)
        *ability = (struct ability){0, now_ms + UNABLE_MS, ANCHOR_UNABLE};
    else if (++ability->failed_count >= FAILED_COUNT_MAX)
        *ability = (struct ability){0, now_ms + FAILED_MS, ANCHOR_FAILED};
}

static void note_success(struct inquiry *inquiry)
{
    struct asked_worker *asked = asked_at(inquiry->asker, inquiry->worker_index);

    if (asked->id == inquiry->worker_id)
        asked->abilities[inquiry->target].failed_count = 0;
}

static void fail(struct inquiry *inquiry, bool is_unable)
{
    note_failure(inquiry, is_unable);
    answer(inquiry, is_unable ? ANCHOR_UNABLE : ANCHOR_FAILED, 0);
}

/* ---- reading ---- */

static void run_read(struct thread_job *job, void *scanner)
{
    struct inquiry *inquiry = container_of(job, struct inquiry, job);

    if (inquiry->source == ANCHOR_SOURCE_IDS)
        inquiry->status = token_anchor_read_prompt(&inquiry->naming, scanner,
                                                   buf_slice(&inquiry->body), &inquiry->read);
    else
        inquiry->status = token_anchor_read_reply(&inquiry->naming, scanner,
                                                  buf_slice(&inquiry->reply), &inquiry->read);
    buf_release(&inquiry->reply); /* giving back a large mapping takes time too */
}

static void call(struct inquiry *inquiry);

/* The second count is in inquiry->read. */
static void answer_with_tail(struct inquiry *inquiry)
{
    uint32_t open = inquiry->read.token_count, whole = inquiry->anchor.token_count;

    if (open > whole || whole - open > TAIL_TOKENS_MAX) {
        fail(inquiry, false);
        return;
    }
    tail_table_set(&inquiry->asker->tails, inquiry->tail_name, whole - open,
                   now_ms_of(inquiry->asker));
    answer(inquiry, ANCHOR_POSTED, whole - open);
}

static void take_count(struct inquiry *inquiry)
{
    struct token_asker *asker = inquiry->asker;
    uint32_t tail_tokens = 0;

    inquiry->anchor = inquiry->read;
    if (inquiry->tail_name == 0 ||
        tail_table_find(&asker->tails, inquiry->tail_name, now_ms_of(asker), &tail_tokens)) {
        answer(inquiry, ANCHOR_POSTED, tail_tokens);
    } else if (!inquiry->may_ask_tail) {
        answer(inquiry, inquiry->must_ask_tail ? ANCHOR_FIELDS : ANCHOR_POSTED, 0);
    } else {
        inquiry->is_tail = true;
        call(inquiry);
    }
}

static void take_read(struct inquiry *inquiry)
{
    if (inquiry->status < 0) {
        if (inquiry->status == -E2BIG) /* nothing is wrong with the worker */
            answer(inquiry, ANCHOR_LONG, 0);
        else if (inquiry->source == ANCHOR_SOURCE_IDS)
            answer(inquiry, ANCHOR_FAILED, 0);
        else
            fail(inquiry, false);
        return;
    }
    if (inquiry->source == ANCHOR_SOURCE_ENGINE)
        note_success(inquiry);
    if (inquiry->is_tail)
        answer_with_tail(inquiry);
    else
        take_count(inquiry);
}

static void on_read(struct thread_job *job)
{
    struct inquiry *inquiry = container_of(job, struct inquiry, job);

    if (inquiry->asker == NULL)
        free_inquiry(inquiry);
    else
        take_read(inquiry);
}

/* Reads text, which is inquiry's reply or body, here or on a thread. */
static void read_text(struct inquiry *inquiry, size_t len)
{
    const struct token_asker_config *config = &inquiry->asker->config;

    inquiry->stage = STAGE_READING;
    thread_job_init(&inquiry->job, run_read, on_read);
    if (len <= INLINE_BYTES_MAX || config->threads == NULL) {
        run_read(&inquiry->job, config->scanner);
        take_read(inquiry);
    } else if (thread_pool_submit(config->threads, &inquiry->job) < 0) {
        answer(inquiry, ANCHOR_BUSY, 0);
    }
}

/* ---- calling ---- */

/* The endpoint is not there, not for this, or not for us: vLLM says 403 where rendering is off. */
static bool is_unable_status(int status)
{
    return status == 401 || status == 403 || status == 404 || status == 405 || status == 501;
}

static void on_called(void *ctx, int error, int status, struct buf *body)
{
    struct inquiry *inquiry = ctx;
    struct token_asker *asker = inquiry->asker;
    uint32_t index = inquiry->worker_index;

    inquiry->call = NULL;
    asker->stats.call_count--;
    asked_at(asker, index)->call_count--;
    if (error < 0 || status != 200) {
        fail(inquiry, error == 0 && is_unable_status(status));
    } else {
        inquiry->reply = *body;
        buf_init(body, 0);
        read_text(inquiry, buf_len(&inquiry->reply));
    }
    start_waiting(asker, index);
}

static size_t answer_bytes_max(size_t body_len)
{
    /* A token is a byte at least, and takes up to eight in the list; templates add some. */
    size_t bytes = 16 * body_len + (64 << 10);

    return bytes < ANSWER_BYTES_MAX ? bytes : ANSWER_BYTES_MAX;
}

static void call(struct inquiry *inquiry)
{
    struct token_asker *asker = inquiry->asker;
    struct worker *worker = worker_set_find(asker->config.workers, inquiry->worker_id);
    struct slice body = buf_slice(&inquiry->body);
    struct worker_call_request request = {
        .io = asker->config.io,
        .deadlines = &asker->calls,
        .target = anchor_target_path(inquiry->target),
        .authorization = asker->config.authorization,
        .pieces = {body},
        .piece_count = 1,
        .answer_bytes_max = answer_bytes_max(body.len),
    };

    inquiry->stage = STAGE_CALLING;
    if (inquiry->is_tail) {
        request.pieces[0] = slice_of(body.ptr, inquiry->splice_at);
        request.pieces[1] = no_tail;
        request.pieces[2] = slice_skip(body, inquiry->splice_at);
        request.piece_count = 3;
    }
    if (worker == NULL || worker->pool == NULL ||
        worker_call_start(worker, &request, on_called, inquiry, &inquiry->call) < 0) {
        answer(inquiry, ANCHOR_BUSY, 0);
        return;
    }
    asker->stats.call_total++;
    asker->stats.call_count++;
    asked_at(asker, inquiry->worker_index)->call_count++;
}

static void start_waiting(struct token_asker *asker, uint32_t index)
{
    struct asked_worker *asked = asked_at(asker, index);

    while (asked->call_count < CALL_COUNT_MAX && asked->waiting.count > 0) {
        struct inquiry *inquiry = container_of(asked->waiting.head.next, struct inquiry, in_list);

        leave_list(inquiry);
        list_append(&asker->active, &inquiry->in_list);
        call(inquiry);
    }
}

static void on_wait_over(struct deadline *deadline)
{
    answer(container_of(deadline, struct inquiry, wait), ANCHOR_BUSY, 0);
}

/* ---- asking ---- */

/* What is known of worker, begun anew where its place was another one's. */
static struct asked_worker *asked_of(struct token_asker *asker, const struct worker *worker)
{
    struct asked_worker *asked = asked_at(asker, worker->index);

    if (asked->id != worker->id) {
        asked->id = worker->id;
        asked->tokens = asker->config.rate_max;
        asked->filled_ms = now_ms_of(asker);
        memset(asked->abilities, 0, sizeof asked->abilities);
    }
    return asked;
}

/* Takes one out of the bucket. False: it is empty. */
static bool take_turn(struct token_asker *asker, struct asked_worker *asked)
{
    uint64_t now_ms = now_ms_of(asker);
    double rate_max = asker->config.rate_max;

    asked->tokens += rate_max * (double)(now_ms - asked->filled_ms) / 1000;
    asked->tokens = asked->tokens < rate_max ? asked->tokens : rate_max;
    asked->filled_ms = now_ms;
    if (asked->tokens < 1)
        return false;
    asked->tokens -= 1;
    return true;
}

static enum anchor_outcome may_ask(struct token_asker *asker, const struct token_question *question)
{
    const struct worker *worker = question->worker;
    struct asked_worker *asked = asked_of(asker, worker);
    const struct ability *ability = &asked->abilities[question->plan->target];

    if (buf_len(question->body) + asker->stats.body_bytes > BODY_BYTES_MAX)
        return ANCHOR_BUSY;
    if (question->plan->source == ANCHOR_SOURCE_IDS)
        return ANCHOR_POSTED;
    if (now_ms_of(asker) < ability->until_ms)
        return ability->why_not;
    if (asked->waiting.count >= WAIT_COUNT_MAX ||
        (worker->report.is_known && worker->report.waiting > WORKER_WAITING_MAX))
        return ANCHOR_BUSY;
    return take_turn(asker, asked) ? ANCHOR_POSTED : ANCHOR_RATE;
}

static uint64_t tail_name_of(const struct token_asker *asker, const struct token_question *question)
{
    const uint64_t of[] = {question->worker->id, question->model, question->plan->template_name};
    uint64_t name;

    if (question->plan->template_name == 0)
        return 0;
    name = digest_64(asker->config.secret, DIGEST_ROOT, of, sizeof of);
    return name != 0 ? name : 1;
}

static struct inquiry *make_inquiry(struct token_asker *asker,
                                    const struct token_question *question)
{
    struct inquiry *inquiry = calloc(1, sizeof *inquiry);

    if (inquiry == NULL)
        return NULL;
    list_node_init(&inquiry->in_list);
    deadline_init(&inquiry->wait);
    inquiry->asker = asker;
    inquiry->worker_id = question->worker->id;
    inquiry->worker_index = question->worker->index;
    inquiry->source = question->plan->source;
    inquiry->target = question->plan->target;
    inquiry->naming = question->naming;
    inquiry->tail_name = tail_name_of(asker, question);
    inquiry->may_ask_tail = question->plan->may_ask_tail;
    inquiry->must_ask_tail = question->plan->must_ask_tail;
    inquiry->splice_at = question->splice_at;
    inquiry->body = *question->body;
    buf_init(question->body, 0);
    buf_init(&inquiry->reply, 0);
    asker->stats.body_bytes += buf_len(&inquiry->body);
    return inquiry;
}

enum anchor_outcome token_asker_ask(struct token_asker *asker,
                                    const struct token_question *question,
                                    token_answered_fn *on_answered, void *ctx)
{
    enum anchor_outcome outcome = may_ask(asker, question);
    struct asked_worker *asked = asked_at(asker, question->worker->index);
    struct inquiry *inquiry;

    assert(question->plan->source != ANCHOR_SOURCE_NONE);

    if (outcome != ANCHOR_POSTED)
        return outcome;
    inquiry = make_inquiry(asker, question);
    if (inquiry == NULL)
        return ANCHOR_BUSY;
    inquiry->on_answered = on_answered;
    inquiry->ctx = ctx;
    if (inquiry->source == ANCHOR_SOURCE_IDS) {
        list_append(&asker->active, &inquiry->in_list);
        read_text(inquiry, buf_len(&inquiry->body));
    } else {
        inquiry->stage = STAGE_WAITING;
        list_append(&asked->waiting, &inquiry->in_list);
        asker->stats.wait_count++;
        deadline_arm(&inquiry->wait, &asker->waits.list, now_ms_of(asker));
        start_waiting(asker, question->worker->index);
    }
    return ANCHOR_POSTED;
}

bool token_asker_is_unable(const struct token_asker *asker, const struct worker *worker,
                           const struct anchor_plan *plan)
{
    const struct asked_worker *asked = &asker->workers[worker->index];
    const struct ability *ability = &asked->abilities[plan->target];

    return asked->id == worker->id && now_ms_of(asker) < ability->until_ms &&
           ability->why_not == ANCHOR_UNABLE;
}

/* ---- life ---- */

struct token_asker *token_asker_create(struct token_asker_config config)
{
    struct token_asker *asker = calloc(1, sizeof *asker);

    assert(config.rate_max > 0);

    if (asker == NULL)
        return NULL;
    asker->config = config;
    io_deadlines_init(&asker->calls, config.io, CALL_MS, worker_call_expired);
    io_deadlines_init(&asker->waits, config.io, WAIT_MS, on_wait_over);
    list_init(&asker->active);
    for (size_t i = 0; i < array_count(asker->workers); i++)
        list_init(&asker->workers[i].waiting);
    return asker;
}

void token_asker_set_rate_max(struct token_asker *asker, uint32_t rate_max)
{
    assert(rate_max > 0);

    asker->config.rate_max = rate_max;
}

void token_asker_forget_worker(struct token_asker *asker, uint32_t index)
{
    asked_at(asker, index)->id = 0;
}

struct token_asker_stats token_asker_stats(const struct token_asker *asker)
{
    return asker->stats;
}

static void give_up(struct inquiry *inquiry)
{
    struct token_asker *asker = inquiry->asker;
    const struct token_answer none = {.outcome = ANCHOR_FAILED};
    bool is_read = inquiry->stage == STAGE_READING &&
                   !thread_pool_cancel(asker->config.threads, &inquiry->job);

    if (inquiry->call != NULL)
        worker_call_cancel(inquiry->call);
    leave_list(inquiry);
    inquiry->on_answered(inquiry->ctx, &none);
    inquiry->asker = NULL;
    if (!is_read) /* else on_read() frees it */
        free_inquiry(inquiry);
}

void token_asker_close(struct token_asker *asker)
{
    for (size_t i = 0; i < array_count(asker->workers); i++) {
        struct list *waiting = &asker->workers[i].waiting;

        while (waiting->count > 0)
            give_up(container_of(waiting->head.next, struct inquiry, in_list));
    }
    while (asker->active.count > 0)
        give_up(container_of(asker->active.head.next, struct inquiry, in_list));
}

void token_asker_destroy(struct token_asker *asker)
{
    free(asker);
}
