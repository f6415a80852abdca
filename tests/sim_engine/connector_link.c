/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/connector_link.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backends/runtime/buf.h"
#include "backends/runtime/clock.h"
#include "backends/runtime/list.h"
#include "backends/runtime/log.h"
#include "tests/sim_engine/connector.h"
#include "tests/sim_engine/connector_socket.h"
#include "tests/sim_engine/page_memory.h"

/*
 * DESIGN
 *
 *     away --timer--> registering --WELCOME on both ends--> registered
 *      ^                   |                                    |
 *      +-------------------+------------ break_off -------------+
 *
 * Whatever is wrong (end of file, refusal, another boot, a message that is none, an answer that was
 * not in time where one had to be waited for) breaks the registration off: both ends go, and a
 * timer begins anew. Engine and requests go on meanwhile: everything is a miss.
 *
 * An end that goes while loads of it have no answer is only shut for writing and read on until its
 * end of file: until then the agent may write into the blocks of those loads. So there may be more
 * ends than two; each knows its registration, and those of older ones are heard for LOADED alone.
 *
 * FOUND does not say which of several questions for a request it answers, but answers come in
 * order: those that are still owed to questions given up are read away first.
 */

enum {
    RETRY_MS = 100,      /* between two tries to register */
    WELCOME_MS = 2000,   /* an agent that says neither WELCOME nor REFUSED by then is none */
    SEND_US = 2000,      /* for room in a socket: an agent that does not read is away */
    SAVE_MS_MAX = 10000, /* whatever an agent asks for */
    READ_COUNT_MAX = 64, /* messages of one end in one turn */
};

enum { SCHEDULER_END, WORKER_END, END_COUNT };

struct end {
    struct list_node in_all;
    uv_poll_t poll;
    int socket;
    struct connector_link *link;
    uint32_t registration;
    bool is_welcome;
    uint32_t loads_due;
};

struct connector_link {
    struct connector_link_config config;
    uint8_t engine_id[IPC_ID_BYTES];
    struct end *ends[END_COUNT]; /* of this registration; NULL: away */
    struct list all;             /* of every registration */
    uv_timer_t timer;            /* the next try, or the end of this one */
    uint32_t registration;
    bool is_registered;
    bool is_refused; /* said once, not each try */
    bool is_closing;
    uint64_t boot;
    struct ipc_welcome welcome;
    uint32_t founds_due;
    uint64_t wait_us;
    struct buf out;
    char in[IPC_MESSAGE_BYTES_MAX];
};

static void on_timer(uv_timer_t *timer);

/* ---- ends ---- */

static void on_end_closed(uv_handle_t *handle)
{
    struct end *end = handle->data;

    list_remove(&end->link->all, &end->in_all);
    free(end);
}

static void close_end(struct end *end)
{
    if (uv_is_closing((uv_handle_t *)&end->poll))
        return;
    uv_close((uv_handle_t *)&end->poll, on_end_closed);
    close(end->socket);
}

static void leave_end(struct end *end)
{
    if (end->loads_due > 0)
        (void)shutdown(end->socket, SHUT_WR); /* what is broken already says end of file too */
    else
        close_end(end);
}

static void break_off(struct connector_link *link, const char *why)
{
    if (link->is_registered)
        LOG(LOG_WARN, "connector_lost", log_text("why", why));
    link->is_registered = false;
    link->config.stats->registered = 0;
    for (size_t i = 0; i < END_COUNT; i++) {
        if (link->ends[i] != NULL)
            leave_end(link->ends[i]);
        link->ends[i] = NULL;
    }
    if (!link->is_closing)
        uv_timer_start(&link->timer, on_timer, RETRY_MS, 0);
}

static bool is_current(const struct end *end)
{
    return end->registration == end->link->registration && end->link->ends[WORKER_END] != NULL;
}

/* Nothing of the agent touches what it was given here. */
static void lose_end(struct end *end, const char *why)
{
    struct connector_link *link = end->link;
    uint32_t registration = end->registration;
    bool had_loads = end->loads_due > 0;

    end->loads_due = 0;
    if (is_current(end))
        break_off(link, why);
    close_end(end);
    if (had_loads)
        link->config.callbacks->on_left(link->config.ctx, registration);
}

/* ---- what comes ---- */

static void hear_welcome(struct end *end, const struct ipc_message *message)
{
    struct connector_link *link = end->link;

    end->is_welcome = true;
    link->boot = message->boot;
    link->welcome = message->as.welcome;
    link->welcome.version = SLICE("");
    if (!link->ends[SCHEDULER_END]->is_welcome || !link->ends[WORKER_END]->is_welcome)
        return;
    uv_timer_stop(&link->timer);
    link->is_registered = true;
    link->is_refused = false;
    link->founds_due = 0;
    link->config.stats->registered = 1;
    link->config.stats->registrations_total++;
    LOG(LOG_INFO, "connector_registered", log_u64("registration", link->registration),
        log_u64("save_ms", link->welcome.save_ms), log_u64("lease_ms", link->welcome.lease_ms));
}

static void hear_refusal(struct connector_link *link, struct ipc_refused refused)
{
    if (!link->is_refused)
        LOG(LOG_WARN, "connector_refused", log_u64("code", refused.code),
            log_slice("text", refused.text));
    link->is_refused = true;
    break_off(link, "refused");
}

static void hear_loaded(struct end *end, struct ipc_loaded loaded)
{
    struct connector_link *link = end->link;

    if (end->loads_due == 0) {
        break_off(link, "an answer to no load");
        return;
    }
    end->loads_due--;
    link->config.callbacks->on_loaded(link->config.ctx, loaded.job, loaded.block_count);
    if (!is_current(end) && end->loads_due == 0)
        close_end(end);
}

/* One message; 0, or what is wrong with it: then the registration was broken off. */
static int read_message(struct end *end, size_t len, struct ipc_message *message)
{
    struct connector_link *link = end->link;
    int status = ipc_message_read(slice_of(link->in, len), message);

    if (status == 0 && is_current(end) && message->kind != IPC_REFUSED &&
        (link->ends[SCHEDULER_END]->is_welcome || link->ends[WORKER_END]->is_welcome) &&
        message->boot != link->boot)
        status = -ESTALE;
    if (status < 0 && is_current(end))
        break_off(link, status == -ESTALE ? "another boot" : "a message that is none");
    return status;
}

static void hear(struct end *end, const struct ipc_message *message)
{
    switch (message->kind) {
    case IPC_LOADED:
        hear_loaded(end, message->as.loaded);
        return;
    case IPC_FOUND: /* too late: nobody waits for it any more */
        if (is_current(end) && end->link->founds_due > 0)
            end->link->founds_due--;
        return;
    case IPC_WELCOME:
        if (is_current(end) && !end->is_welcome)
            hear_welcome(end, message);
        return;
    case IPC_REFUSED:
        if (is_current(end))
            hear_refusal(end->link, message->as.refused);
        return;
    default:
        return;
    }
}

/* Receives one message. > 0: it is there; 0: none in time, or the end is lost. */
static int receive(struct end *end, struct ipc_message *message, uint64_t wait_us)
{
    struct connector_link *link = end->link;
    int len = connector_socket_receive(end->socket, link->in, sizeof link->in, wait_us);

    if (len == -ETIMEDOUT)
        return 0;
    if (len > 0)
        return read_message(end, (size_t)len, message) == 0;
    if (len == -EMSGSIZE) {
        if (is_current(end))
            break_off(link, "a message that is none");
        return 0;
    }
    lose_end(end, len == 0 ? "end of file" : uv_strerror(len));
    return 0;
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    struct end *end = poll->data;
    struct ipc_message message;

    (void)status; /* receiving says it better */
    (void)events;
    for (size_t i = 0; i < READ_COUNT_MAX && !uv_is_closing((uv_handle_t *)poll); i++) {
        if (receive(end, &message, 0) == 0)
            return;
        hear(end, &message);
    }
}

/* ---- what goes ---- */

static int send_message(struct connector_link *link, size_t index,
                        const struct ipc_message *message, int fd)
{
    struct ipc_message stamped = *message;
    uint64_t began_us = clock_now_us();
    int status;

    stamped.boot = message->kind == IPC_HELLO ? 0 : link->boot;
    buf_clear(&link->out);
    status = ipc_message_write(&link->out, &stamped);
    if (status < 0)
        return status;
    status = connector_socket_send(link->ends[index]->socket, buf_slice(&link->out), fd, SEND_US);
    link->wait_us += clock_now_us() - began_us;
    if (status < 0)
        break_off(link, uv_strerror(status));
    return status;
}

/* Scratch for what a message of a worker points to. */
static void put_memory(const struct page_memory *memory, struct buf *region, struct buf *segments)
{
    struct ipc_region whole = {.bytes = page_memory_bytes(memory)};
    int status = ipc_region_write(region, &whole);

    for (uint64_t layer = 0; layer < PAGE_LAYER_COUNT && status == 0; layer++) {
        struct page_segment segment = {
            .offset = layer * page_memory_layer_stride(memory),
            .stride = page_memory_layer_bytes(memory),
            .bytes = page_memory_layer_bytes(memory),
        };

        status = ipc_segment_write(segments, &segment);
    }
    assert(status == 0);
}

static int say_hello(struct connector_link *link, size_t index)
{
    const struct page_memory *memory = link->config.memory;
    struct ipc_message message = {.kind = IPC_HELLO};
    struct ipc_hello *hello = &message.as.hello;
    struct buf region, segments;
    bool is_worker = index == WORKER_END;
    int status;

    buf_init(&region, IPC_MESSAGE_BYTES_MAX);
    buf_init(&segments, IPC_MESSAGE_BYTES_MAX);
    if (is_worker)
        put_memory(memory, &region, &segments);
    *hello = (struct ipc_hello){
        .role = is_worker ? IPC_WORKER : IPC_SCHEDULER,
        .device = DEVICE_HOST,
        .rank_count = 1,
        .region_count = is_worker ? 1 : 0,
        .segment_count = is_worker ? PAGE_LAYER_COUNT : 0,
        .block_count = page_memory_block_count(memory),
        .block_tokens = link->config.block_tokens,
        .worker = slice_of_string(link->config.worker),
        .model = slice_of_string(link->config.model),
        .version = SLICE("samovar-sim " SAMOVAR_VERSION),
        .regions = buf_slice(&region),
        .segments = buf_slice(&segments),
    };
    memcpy(hello->engine_id, link->engine_id, sizeof hello->engine_id);
    status = send_message(link, index, &message, is_worker ? page_memory_fd(memory) : -1);
    buf_release(&region);
    buf_release(&segments);
    return status;
}

static int open_end(struct connector_link *link, size_t index)
{
    int socket_fd = connector_socket_open(link->config.path);
    struct end *end;
    int status;

    if (socket_fd < 0)
        return socket_fd;
    end = calloc(1, sizeof *end);
    assert(end != NULL);
    *end = (struct end){.link = link, .socket = socket_fd, .registration = link->registration};
    list_node_init(&end->in_all);
    status = uv_poll_init(link->config.loop, &end->poll, socket_fd);
    assert(status == 0);
    end->poll.data = end;
    list_append(&link->all, &end->in_all);
    status = uv_poll_start(&end->poll, UV_READABLE, on_readable);
    assert(status == 0);
    link->ends[index] = end;
    return 0;
}

static void register_anew(struct connector_link *link)
{
    int status;

    link->registration++;
    uv_timer_start(&link->timer, on_timer, WELCOME_MS, 0);
    status = open_end(link, SCHEDULER_END);
    if (status == 0)
        status = open_end(link, WORKER_END);
    if (status < 0)
        break_off(link, uv_strerror(status));
    else if (say_hello(link, SCHEDULER_END) == 0)
        (void)say_hello(link, WORKER_END); /* else it was broken off */
}

static void on_timer(uv_timer_t *timer)
{
    struct connector_link *link = timer->data;

    if (link->ends[WORKER_END] != NULL)
        break_off(link, "no welcome");
    else
        register_anew(link);
}

/* ---- what others call ---- */

struct connector_link *connector_link_create(const struct connector_link_config *config)
{
    struct connector_link *link = calloc(1, sizeof *link);
    int status;

    assert(link != NULL);
    link->config = *config;
    list_init(&link->all);
    buf_init(&link->out, SIZE_MAX);
    status = getrandom(link->engine_id, sizeof link->engine_id, 0) == IPC_ID_BYTES ? 0 : -1;
    assert(status == 0);
    status = uv_timer_init(config->loop, &link->timer);
    assert(status == 0);
    link->timer.data = link;
    register_anew(link);
    return link;
}

uint32_t connector_link_registration(const struct connector_link *link)
{
    return link->is_registered ? link->registration : 0;
}

int connector_link_tell(struct connector_link *link, const struct ipc_message *message)
{
    return link->is_registered ? send_message(link, SCHEDULER_END, message, -1) : -ENOTCONN;
}

static uint32_t save_ms(const struct connector_link *link)
{
    return link->welcome.save_ms < SAVE_MS_MAX ? link->welcome.save_ms : SAVE_MS_MAX;
}

/* Asks, and hears whatever comes until is_answer says that it is that. */
typedef bool is_answer_fn(struct connector_link *link, const struct ipc_message *question,
                          const struct ipc_message *message);

static int ask(struct connector_link *link, size_t index, const struct ipc_message *question,
               struct ipc_message *message, is_answer_fn *is_answer)
{
    uint64_t wait_us =
        1000 * (uint64_t)(index == WORKER_END ? save_ms(link) : link->config.lookup_ms);
    struct end *end = link->ends[index];
    uint64_t began_us, now_us;
    int status = send_message(link, index, question, -1);

    if (status < 0)
        return status;
    if (question->kind == IPC_LOOKUP)
        link->founds_due++;
    link->config.callbacks->on_sent(link->config.ctx, question->kind);
    now_us = began_us = clock_now_us();
    status = -ETIMEDOUT;
    while (status == -ETIMEDOUT && link->ends[index] == end && now_us - began_us < wait_us) {
        if (receive(end, message, began_us + wait_us - now_us) > 0) {
            if (is_answer(link, question, message))
                status = 0;
            else
                hear(end, message);
        }
        now_us = clock_now_us();
    }
    link->wait_us += now_us - began_us;
    return status == 0 || link->ends[index] == end ? status : -ENOTCONN;
}

static bool is_found(struct connector_link *link, const struct ipc_message *question,
                     const struct ipc_message *message)
{
    return message->kind == IPC_FOUND && link->founds_due == 1 &&
           message->as.found.request == question->as.lookup.request;
}

int connector_link_look_up(struct connector_link *link, struct ipc_lookup lookup,
                           struct ipc_found *found)
{
    struct ipc_message question = {.kind = IPC_LOOKUP, .as.lookup = lookup};
    struct ipc_message answer;
    int status;

    if (!link->is_registered)
        return -ENOTCONN;
    status = ask(link, SCHEDULER_END, &question, &answer, is_found);
    if (status < 0)
        return status;
    link->founds_due--;
    *found = answer.as.found;
    return 0;
}

int connector_link_load(struct connector_link *link, const struct ipc_load *load)
{
    struct ipc_message message = {.kind = IPC_LOAD, .as.load = *load};
    int status;

    if (!link->is_registered)
        return -ENOTCONN;
    status = send_message(link, WORKER_END, &message, -1);
    if (status < 0)
        return status;
    link->ends[WORKER_END]->loads_due++;
    link->config.callbacks->on_sent(link->config.ctx, IPC_LOAD);
    return 0;
}

static bool is_saved(struct connector_link *link, const struct ipc_message *question,
                     const struct ipc_message *message)
{
    (void)link;
    return message->kind == IPC_SAVED && message->as.saved.job == question->as.save.job;
}

int connector_link_save(struct connector_link *link, const struct ipc_save *save,
                        struct ipc_saved *saved)
{
    struct ipc_message question = {.kind = IPC_SAVE, .as.save = *save};
    struct ipc_message answer;
    int status;

    if (!link->is_registered)
        return -ENOTCONN;
    status = ask(link, WORKER_END, &question, &answer, is_saved);
    if (status == -ETIMEDOUT)
        break_off(link, "no answer to a save in time");
    if (status == 0)
        *saved = answer.as.saved;
    return status;
}

uint64_t connector_link_take_wait_us(struct connector_link *link)
{
    uint64_t wait_us = link->wait_us;

    link->wait_us = 0;
    return wait_us;
}

void connector_link_close(struct connector_link *link)
{
    if (link == NULL || link->is_closing)
        return;
    link->is_closing = true;
    break_off(link, "the engine ends");
    for (struct list_node *node = link->all.head.next; node != &link->all.head; node = node->next)
        close_end(container_of(node, struct end, in_all));
    uv_close((uv_handle_t *)&link->timer, NULL);
}

void connector_link_destroy(struct connector_link *link)
{
    if (link == NULL)
        return;
    assert(link->all.count == 0);
    buf_release(&link->out);
    free(link);
}
