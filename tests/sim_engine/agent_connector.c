/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/agent_connector.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/runtime/buf.h"
#include "backends/runtime/list.h"
#include "backends/runtime/log.h"
#include "tests/sim_engine/connector_link.h"
#include "tests/sim_engine/page_memory.h"

/*
 * DESIGN
 *
 * As the connector of a real engine:
 * - a request is OPENed when it comes, and once more whenever a new registration knows nothing of
 *   it, before anything else is said of it;
 * - what was found is TAKEn and LOADed when there is room for it. The blocks of a load are neither
 *   given back nor written before its end, also where the request has left meanwhile: then the load
 *   keeps them;
 * - full blocks of prompts are SAVEd at the end of the step that made them so, or that found them,
 *   and the engine stands still until they are, or until it has broken off: only then may the
 *   blocks be used again.
 *
 * Pages: a block is written when the step that computes it begins, which is when others begin to
 * find it; it is compared when it was loaded and when a request goes on from it, so that whatever
 * was copied wrongly, to or from anywhere, shows. Equal words in place of equal keys and values: no
 * time is simulated for it, and what the copying takes is real.
 */

/* Of the entries of a SAVE: a message less what may come before and behind the last one's blocks.
 */
enum { ENTRY_BYTES_MAX = IPC_MESSAGE_BYTES_MAX - 1024 };

/* What the agent knows of a sequence. */
struct connected {
    uint64_t request;
    uint32_t registration; /* in which it was OPENed; 0: in none */
    size_t saved_count;    /* leading blocks that were offered in it */
    struct load *load;     /* NULL: none is under way */
};

struct load {
    struct list_node in_all;
    uint64_t job;
    uint32_t registration;
    struct sequence *sequence;   /* NULL: it has left */
    struct cache_sequence cache; /* the blocks of one that has left */
    size_t first_block;
    size_t block_count;
};

struct agent_connector {
    struct agent_connector_config config;
    char *path, *worker, *model;
    struct page_memory *memory;
    struct connector_link *link;
    struct list loads;
    uint64_t request; /* the last one's number */
    uint64_t job;
    bool is_saving; /* the scheduler goes on by itself afterwards */
    struct buf entries;
    struct connector_stats stats;
};

static struct connected *connected_of(const struct sequence *sequence)
{
    struct connected *connected = sequence->connected;

    assert(connected != NULL);
    return connected;
}

/* ---- what the agent knows ---- */

static void tell_tokens(struct agent_connector *connector, const struct sequence *sequence,
                        uint64_t request)
{
    size_t first = 0;
    int status = 0;

    while (status == 0 && first < sequence->prompt_count) {
        size_t left = sequence->prompt_count - first;
        uint32_t count = (uint32_t)(left < IPC_TOKEN_COUNT_MAX ? left : IPC_TOKEN_COUNT_MAX);
        struct slice tokens = slice_of(sequence->tokens.ids + first, count * sizeof(uint32_t));
        struct ipc_message message = {
            .kind = IPC_TOKENS,
            .as.tokens = {.request = request,
                          .first = (uint32_t)first,
                          .token_count = count,
                          .tokens = tokens},
        };

        if (first == 0)
            message = (struct ipc_message){
                .kind = IPC_OPEN,
                .as.open = {.request = request,
                            .prompt_tokens = (uint32_t)sequence->prompt_count,
                            .id = sequence->id,
                            .lora = sequence->cache.keys.lora,
                            .salt = sequence->cache.keys.salt,
                            .tokens = tokens,
                            .token_count = count},
            };
        status = connector_link_tell(connector->link, &message);
        first += count;
    }
}

/* false: no agent knows of it. */
static bool is_open(struct agent_connector *connector, const struct sequence *sequence)
{
    struct connected *connected = connected_of(sequence);
    uint32_t registration = connector_link_registration(connector->link);

    if (registration != 0 && connected->registration != registration) {
        connected->request = ++connector->request;
        connected->registration = registration;
        connected->saved_count = 0;
        tell_tokens(connector, sequence, connected->request);
    }
    return registration != 0 &&
           connector_link_registration(connector->link) == connected->registration;
}

static void open_sequence(void *ctx, struct sequence *sequence)
{
    struct agent_connector *connector = ctx;

    sequence->connected = calloc(1, sizeof(struct connected));
    assert(sequence->connected != NULL);
    (void)is_open(connector, sequence); /* else when it matters */
}

static void close_sequence(void *ctx, struct sequence *sequence)
{
    struct agent_connector *connector = ctx;
    struct connected *connected = connected_of(sequence);
    struct ipc_message message = {.kind = IPC_CLOSE, .as.number = {connected->request}};

    if (connected->load != NULL) {
        connected->load->sequence = NULL;
        connected->load->cache = sequence->cache;
        cache_sequence_init(&sequence->cache, sequence->cache.root);
    }
    if (connected->registration != 0 &&
        connected->registration == connector_link_registration(connector->link) &&
        connector_link_tell(connector->link, &message) < 0)
        LOG(LOG_DEBUG, "connector_close_unsaid"); /* the end of the connection says it too */
    free(connected);
    sequence->connected = NULL;
}

/* ---- pages ---- */

static bool check_pages(struct agent_connector *connector, const struct cache_sequence *cache,
                        size_t first, size_t count)
{
    size_t wrong = 0;

    assert(first + count <= cache->block_count && first + count <= cache->name_count);
    for (size_t i = first; i < first + count; i++) {
        if (page_memory_holds(connector->memory, cache->blocks[i], cache->names[i]))
            continue;
        if (wrong++ == 0)
            LOG(LOG_ERROR, "wrong_page", log_u64("engine_block", cache->blocks[i]),
                log_u64("block", i));
    }
    connector->stats.read_pages_total += count;
    connector->stats.wrong_pages_total += wrong;
    return wrong == 0;
}

static void write_pages(void *ctx, struct sequence *sequence, size_t first_block,
                        size_t block_count)
{
    struct agent_connector *connector = ctx;
    const struct cache_sequence *cache = &sequence->cache;

    for (size_t i = first_block; i < first_block + block_count; i++)
        page_memory_write(connector->memory, cache->blocks[i], cache->names[i]);
}

static void read_pages(void *ctx, struct sequence *sequence, size_t block_count)
{
    if (!check_pages(ctx, &sequence->cache, 0, block_count))
        sequence->has_wrong_page = true;
}

/* ---- loading ---- */

/* What may be loaded at most: never the last token of the prompt. */
static size_t block_count_max(const struct agent_connector *connector,
                              const struct sequence *sequence)
{
    return (sequence->prompt_count - 1) / prefix_cache_block_size(connector->config.cache);
}

static struct connector_found look_up(void *ctx, struct sequence *sequence, size_t local_count)
{
    struct agent_connector *connector = ctx;
    size_t block_size = prefix_cache_block_size(connector->config.cache);
    size_t wanted = block_count_max(connector, sequence) * block_size;
    struct ipc_lookup lookup = {.local_tokens = (uint32_t)local_count};
    struct ipc_found found;

    if (local_count >= wanted || !is_open(connector, sequence))
        return (struct connector_found){0};
    lookup.request = connected_of(sequence)->request;
    connector->stats.lookups_total++;
    if (connector_link_look_up(connector->link, lookup, &found) < 0) {
        connector->stats.lookups_late_total++;
        return (struct connector_found){0};
    }
    if (found.later_ms > 0) {
        connector->stats.lookups_put_off_total++;
        return (struct connector_found){.later_ms = found.later_ms};
    }
    if (found.tokens % block_size != 0 || found.tokens > wanted - local_count)
        return (struct connector_found){0}; /* an agent that cannot count is believed nothing */
    return (struct connector_found){.token_count = found.tokens};
}

static bool load(void *ctx, struct sequence *sequence, size_t first_block, size_t block_count)
{
    struct agent_connector *connector = ctx;
    struct connected *connected = connected_of(sequence);
    uint64_t request = connected->request;
    struct ipc_message take = {
        .kind = IPC_TAKE,
        .as.take = {request, (uint32_t)first_block, (uint32_t)block_count},
    };
    struct ipc_load message = {
        .job = ++connector->job,
        .request = request,
        .first_block = (uint32_t)first_block,
        .block_count = (uint32_t)block_count,
        .engine_blocks =
            slice_of(sequence->cache.blocks + first_block, block_count * sizeof(uint32_t)),
    };
    struct load *made;

    if (connected->registration != connector_link_registration(connector->link) ||
        connector_link_tell(connector->link, &take) < 0 ||
        connector_link_load(connector->link, &message) < 0)
        return false;
    made = calloc(1, sizeof *made);
    assert(made != NULL);
    *made = (struct load){
        .job = message.job,
        .registration = connected->registration,
        .sequence = sequence,
        .first_block = first_block,
        .block_count = block_count,
    };
    list_node_init(&made->in_all);
    list_append(&connector->loads, &made->in_all);
    connected->load = made;
    connector->stats.loads_total++;
    connector->stats.loading++;
    return true;
}

/* The agent writes no more into its blocks; count of them, from the first on, are there. */
static void end_load(struct agent_connector *connector, struct load *ended, size_t count)
{
    struct sequence *sequence = ended->sequence;

    connector->stats.loading--;
    connector->stats.loaded_blocks_total += count;
    connector->stats.missed_blocks_total += ended->block_count - count;
    (void)check_pages(connector, sequence != NULL ? &sequence->cache : &ended->cache,
                      ended->first_block, count);
    list_remove(&connector->loads, &ended->in_all);
    if (sequence != NULL) {
        connected_of(sequence)->load = NULL;
        scheduler_loaded(connector->config.scheduler, sequence, count);
    } else {
        prefix_cache_free(connector->config.cache, &ended->cache);
        cache_sequence_release(&ended->cache);
    }
    free(ended);
}

static void wake(struct agent_connector *connector)
{
    if (!connector->is_saving)
        connector->config.wake(connector->config.ctx);
}

static void on_loaded(void *ctx, uint64_t job, uint32_t block_count)
{
    struct agent_connector *connector = ctx;
    struct list_node *node = connector->loads.head.next;

    while (node != &connector->loads.head && container_of(node, struct load, in_all)->job != job)
        node = node->next;
    if (node == &connector->loads.head)
        return; /* no such load: then it is no news of ours either */
    struct load *ended = container_of(node, struct load, in_all);
    end_load(connector, ended, block_count < ended->block_count ? block_count : ended->block_count);
    wake(connector);
}

static void on_left(void *ctx, uint32_t registration)
{
    struct agent_connector *connector = ctx;
    struct list_node *node = connector->loads.head.next;

    while (node != &connector->loads.head) {
        struct load *ended = container_of(node, struct load, in_all);

        node = node->next;
        if (ended->registration == registration)
            end_load(connector, ended, 0);
    }
    wake(connector);
}

static void on_sent(void *ctx, enum ipc_kind kind)
{
    struct agent_connector *connector = ctx;

    connector->config.on_sent(connector->config.ctx, kind);
}

/* ---- saving ---- */

/* Adds the blocks of the prompt that are full now and were not offered yet: those too that the
 * engine had itself, as without them what follows is of no use to anybody. Who has them says so. */
static bool add_entry(struct agent_connector *connector, const struct sequence *sequence)
{
    size_t block_size = prefix_cache_block_size(connector->config.cache);
    size_t computed = sequence->computed_count + sequence->step_count;
    size_t end =
        (computed < sequence->prompt_count ? computed : sequence->prompt_count) / block_size;
    struct connected *connected = connected_of(sequence);
    struct ipc_save_entry entry;
    int status;

    if (end == 0 || !is_open(connector, sequence) || end <= connected->saved_count)
        return false;
    if (end - connected->saved_count > IPC_BLOCK_COUNT_MAX)
        end = connected->saved_count + IPC_BLOCK_COUNT_MAX; /* the others with the next step */
    entry = (struct ipc_save_entry){
        .request = connected->request,
        .first_block = (uint32_t)connected->saved_count,
        .block_count = (uint32_t)(end - connected->saved_count),
        .engine_blocks = slice_of(sequence->cache.blocks + connected->saved_count,
                                  (end - connected->saved_count) * sizeof(uint32_t)),
    };
    if (buf_len(&connector->entries) + entry.engine_blocks.len > ENTRY_BYTES_MAX)
        return false; /* the next step's */
    status = ipc_save_entry_write(&connector->entries, &entry);
    assert(status == 0);
    connected->saved_count = end;
    return true;
}

static void save(void *ctx, const struct connector_step *step)
{
    struct agent_connector *connector = ctx;
    struct ipc_save message = {
        .job = ++connector->job,
        .step_tokens = (uint32_t)step->prefill_tokens,
        .step_us = (uint32_t)step->us,
    };
    struct ipc_saved saved;

    buf_clear(&connector->entries);
    connector->is_saving = true;
    for (size_t i = 0; i < step->sequence_count && message.entry_count < IPC_SAVE_ENTRY_COUNT_MAX;
         i++) {
        if (step->sequences[i] != NULL && add_entry(connector, step->sequences[i]))
            message.entry_count++;
    }
    message.entries = buf_slice(&connector->entries);
    if (message.entry_count > 0) {
        connector->stats.saves_total++;
        if (connector_link_save(connector->link, &message, &saved) < 0) {
            connector->stats.saves_late_total++;
        } else {
            connector->stats.saved_blocks_total += saved.saved;
            connector->stats.known_blocks_total += saved.known;
            connector->stats.refused_blocks_total += saved.refused;
        }
    }
    connector->is_saving = false;
}

static uint64_t take_wait_us(void *ctx)
{
    struct agent_connector *connector = ctx;

    return connector_link_take_wait_us(connector->link);
}

static const struct connector_ops connector_ops = {
    .open = open_sequence,
    .look_up = look_up,
    .load = load,
    .write = write_pages,
    .read = read_pages,
    .save = save,
    .close = close_sequence,
    .take_wait_us = take_wait_us,
};

static const struct connector_link_callbacks link_callbacks = {on_loaded, on_left, on_sent};

/* What is equal here has equal bytes for equal tokens. */
static char *layout_text(const struct agent_connector_config *config)
{
    char *text;
    int len =
        asprintf(&text, "%s samovar-sim pages of %u bytes, %d layers, %u tokens", config->model,
                 config->page_bytes, PAGE_LAYER_COUNT, prefix_cache_block_size(config->cache));

    assert(len > 0);
    return text;
}

int agent_connector_create(const struct agent_connector_config *config,
                           struct agent_connector **connector)
{
    struct agent_connector *made = calloc(1, sizeof *made);
    int status;

    assert(made != NULL);
    made->config = *config;
    list_init(&made->loads);
    buf_init(&made->entries, IPC_MESSAGE_BYTES_MAX);
    status = page_memory_create(config->block_count, config->page_bytes, &made->memory);
    if (status < 0) {
        free(made);
        return status;
    }
    made->path = strdup(config->path);
    made->worker = strdup(config->worker);
    made->model = layout_text(config);
    assert(made->path != NULL && made->worker != NULL);
    made->link = connector_link_create(&(struct connector_link_config){
        .loop = config->loop,
        .path = made->path,
        .worker = made->worker,
        .model = made->model,
        .block_tokens = prefix_cache_block_size(config->cache),
        .lookup_ms = config->lookup_ms,
        .memory = made->memory,
        .stats = &made->stats,
        .callbacks = &link_callbacks,
        .ctx = made,
    });
    scheduler_connect(config->scheduler, &connector_ops, made);
    *connector = made;
    return 0;
}

const struct connector_stats *agent_connector_stats(const struct agent_connector *connector)
{
    return &connector->stats;
}

void agent_connector_close(struct agent_connector *connector)
{
    if (connector != NULL)
        connector_link_close(connector->link);
}

void agent_connector_destroy(struct agent_connector *connector)
{
    if (connector == NULL)
        return;
    connector_link_destroy(connector->link);
    while (connector->loads.count > 0) { /* of requests that left; nobody needs their blocks */
        struct load *left = container_of(connector->loads.head.next, struct load, in_all);

        assert(left->sequence == NULL);
        list_remove(&connector->loads, &left->in_all);
        left->cache.block_count = 0;
        cache_sequence_release(&left->cache);
        free(left);
    }
    page_memory_destroy(connector->memory);
    buf_release(&connector->entries);
    free(connector->path);
    free(connector->worker);
    free(connector->model);
    free(connector);
}
