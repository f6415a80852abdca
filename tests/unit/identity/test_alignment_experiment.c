/* SPDX-License-Identifier: Apache-2.0 */

/*
 * How well does alignment predict what an engine finds in its cache? 150 conversations of prose and
 * code share a few system prompts (and some the beginning of a document) and take turns on one
 * engine with an LRU cache of token blocks, which keeps its answers too. Before each turn the hit
 * is predicted from the claims about the prompt's text blocks; then it is compared with the truth.
 *
 * The tokenizer has the habits that matter: a word takes the space before it, long words are split,
 * indentation is one token, punctuation and the template's marks are tokens of their own. So tokens
 * per byte differ by a factor of two between prose and code, and prompts part in mid-token.
 */
#include "hashing/block_chain.h"
#include "hashing/token_name.h"
#include "kvtier/identity/alignment.h"

#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CORPUS_BYTES = 2 << 20,
    CONVERSATIONS = 150,
    MESSAGES_MAX = 24,
    TOKENS_MAX = 64 << 10,
    BLOCKS_MAX = TOKENS_MAX / 8,
    TEXT_BLOCKS_MAX = 4096,
    BLOCK_TOKENS = 16,
    ID_MARK_START = 1, /* the template's own tokens */
    ID_MARK_END = 2,
    ID_ODD = 3,
    NEVER = 0,
};

/* A stretch of the corpus. */
struct snip {
    size_t at;
    size_t len;
};

struct message {
    const char *role;
    struct snip parts[2];
};

struct conversation {
    struct message messages[MESSAGES_MAX];
    size_t count;
};

struct setting {
    const char *name;
    uint32_t capacity;            /* of the cache, in blocks */
    uint32_t mid_percent;         /* of conversations begin with a part of a common document */
    uint32_t cut_bytes_min;       /* of a text block at a message's end */
    uint32_t retokenised_percent; /* of answers were generated as other tokens than their text's */
    bool has_no_answers;          /* nobody tells the agent of them */
};

/* The engine's cache: a block is in it when its time is not NEVER; the least is evicted first. */
struct cached {
    uint64_t alias;
    uint64_t time;
};

struct experiment {
    struct setting setting;
    struct alignment alignment;
    uint8_t secret[DIGEST_SECRET_BYTES];
    uint64_t random;
    char *corpus;
    struct conversation *conversations;
    uint32_t *ids;
    uint32_t id_count;
    struct digest_128 *blocks; /* of ids */
    uint32_t block_count;
    struct block *text;
    size_t text_count;
    struct block_map places; /* name -> place in cache + 1 */
    struct cached *cache;
    size_t place_count;
    uint64_t now;
    uint32_t cached_count;
    uint64_t attempt;
    double prompt_tokens, hit_tokens, predicted_tokens, error_tokens;
    uint32_t *errors; /* in blocks, of each request */
    size_t request_count;
};

static uint64_t next_random(struct experiment *e)
{
    uint64_t z = e->random += 0x9e3779b97f4a7c15;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

static size_t below(struct experiment *e, size_t limit)
{
    return next_random(e) % limit;
}

static size_t lognormal(struct experiment *e, double mean, double deviation)
{
    double u = ((double)below(e, 1 << 30) + 1) / (1 << 30),
           v = (double)below(e, 1 << 30) / (1 << 30);
    double length = exp(mean + deviation * sqrt(-2 * log(u)) * cos(6.283185307 * v));

    return length < 20000 ? (size_t)length : 20000;
}

static void write_corpus(struct experiment *e)
{
    static const char *const words[] = {
        "the",      "a",         "of",   "to",      "and",    "in",        "is",  "that",
        "cache",    "block",     "node", "request", "prefix", "residency", "for", "which",
        "deadline", "therefore", "when", "memory",  "router", "answered",  "by",  "unmistakably"};
    static const char *const code[] = {
        "if (", "return ",   "->", "[i]", " = ", " != ", ");",   "{",
        "}",    "uint32_t ", "&",  "++",  " + ", "NULL", "0x1f", ", "};
    size_t len = 0;

    while (len < CORPUS_BYTES) {
        const bool is_code = below(e, 2) == 0;

        for (size_t line = below(e, 60) + 5; line > 0 && len < CORPUS_BYTES - 400; line--) {
            for (size_t i = is_code ? 4 * below(e, 4) : 0; i > 0; i--)
                e->corpus[len++] = ' ';
            for (size_t n = is_code ? below(e, 9) + 1 : below(e, 16) + 4; n > 0; n--) {
                const char *word = words[below(e, array_count(words))];
                const char *more = is_code ? code[below(e, array_count(code))] : " ";

                len += (size_t)snprintf(e->corpus + len, 40, "%s%s", word, more);
            }
            len += (size_t)snprintf(e->corpus + len, 4, "%s", is_code ? ";\n" : ".\n");
        }
        if (len >= CORPUS_BYTES - 400)
            break;
    }
    memset(e->corpus + len, '.', CORPUS_BYTES - len);
}

static struct snip snip(struct experiment *e, size_t len)
{
    return (struct snip){below(e, CORPUS_BYTES - len - 1), len};
}

/* The length of the token at text. */
static size_t token_len(const char *text, size_t len)
{
    size_t n = 0;

    if (text[0] == '\n' || (text[0] == ' ' && len > 1 && text[1] == ' ')) {
        while (n < len && (text[n] == ' ' || text[n] == '\n'))
            n++;
        return n;
    }
    n = text[0] == ' ' && len > 1 ? 1 : 0;
    if (!isalpha((unsigned char)text[n]))
        return n + 1;
    while (n < len && n < 8 && isalpha((unsigned char)text[n]))
        n++;
    return n;
}

static void put_id(struct experiment *e, uint32_t id)
{
    cr_assert(lt(u32, e->id_count, TOKENS_MAX));
    e->ids[e->id_count++] = id;
}

static void put_text(struct experiment *e, const char *text, size_t len)
{
    for (size_t n; len > 0; text += n, len -= n) {
        n = token_len(text, len);
        put_id(e, (uint32_t)digest_64(e->secret, DIGEST_BODY, text, n) | 4);
    }
}

/* Ids of the messages and of what the template adds for the answer to come; returns how many
 * tokens that is. */
static uint32_t render(struct experiment *e, const struct message *messages, size_t count)
{
    char content[40000];
    uint32_t text_end;

    e->id_count = 0;
    for (size_t i = 0; i < count; i++) {
        size_t len = 0;

        put_id(e, ID_MARK_START);
        put_text(e, messages[i].role, strlen(messages[i].role));
        put_text(e, "\n", 1);
        for (size_t part = 0; part < 2; part++) {
            memcpy(content + len, e->corpus + messages[i].parts[part].at,
                   messages[i].parts[part].len);
            len += messages[i].parts[part].len;
        }
        put_text(e, content, len);
        put_id(e, ID_MARK_END);
        put_text(e, "\n", 1);
    }
    text_end = e->id_count;
    put_id(e, ID_MARK_START);
    put_text(e, "assistant", 9);
    put_text(e, "\n", 1);
    return e->id_count - text_end;
}

static void name_blocks(struct experiment *e)
{
    struct digest_128 block = token_name_root(e->secret, NULL, 0, NULL, 0);

    e->block_count = e->id_count / BLOCK_TOKENS;
    for (uint32_t i = 0; i < e->block_count; i++)
        e->blocks[i] = block =
            token_name_next(e->secret, block, e->ids + (size_t)i * BLOCK_TOKENS, BLOCK_TOKENS, 0);
}

static void name_text(struct experiment *e, const struct message *messages, size_t count)
{
    struct block_chain chain;
    struct block_chain_config config = {
        .secret = e->secret, .block_bytes = 256, .cut_bytes_min = e->setting.cut_bytes_min};
    struct block tail;

    block_chain_init(&chain, config, 1, e->text, TEXT_BLOCKS_MAX - 1);
    for (size_t i = 0; i < count; i++) {
        const struct message *m = &messages[i];

        cr_assert(ge(int, block_chain_append(&chain, m->role, strlen(m->role) + 1), 0));
        for (size_t part = 0; part < 2; part++)
            cr_assert(ge(
                int, block_chain_append(&chain, e->corpus + m->parts[part].at, m->parts[part].len),
                0));
        cr_assert(ge(int, block_chain_end(&chain), 0));
    }
    e->text_count = chain.block_count;
    tail = block_chain_tail(&chain);
    if (tail.end > chain.end)
        e->text[e->text_count++] = tail;
}

static struct cached *cached_at(struct experiment *e, struct digest_128 block)
{
    uint64_t *place = block_map_claim(&e->places, block.low);

    cr_assert(ne(ptr, place, NULL));
    if (*place == 0) {
        cr_assert(lt(sz, e->place_count, 1 << 19));
        e->cache[e->place_count] = (struct cached){block.high | 1, NEVER};
        *place = ++e->place_count;
    }
    return &e->cache[*place - 1];
}

static void evict_oldest(struct experiment *e)
{
    struct cached *oldest = NULL;

    for (size_t i = 0; i < e->place_count; i++)
        if (e->cache[i].time != NEVER && (oldest == NULL || e->cache[i].time < oldest->time))
            oldest = &e->cache[i];
    oldest->time = NEVER;
    e->cached_count--;
    cr_assert(token_chain_remove(&e->alignment.tokens, oldest->alias, TOKEN_TIER_HBM, 0));
}

/* What the engine does with blocks[]; the prefix stays longest. */
static void cache_blocks(struct experiment *e)
{
    for (uint32_t i = 0; i < e->block_count; i++) {
        struct cached *cached = cached_at(e, e->blocks[i]);
        struct token_store store = {.root = token_name_root(e->secret, NULL, 0, NULL, 0),
                                    .has_parent = i > 0,
                                    .parent = i > 0 ? e->blocks[i - 1].high | 1 : 0,
                                    .aliases = &cached->alias,
                                    .block_count = 1,
                                    .ids = e->ids + (size_t)i * BLOCK_TOKENS,
                                    .block_tokens = BLOCK_TOKENS};

        if (cached->time == NEVER) {
            cr_assert(eq(sz, token_chain_store(&e->alignment.tokens, &store), 1));
            e->cached_count++;
        }
        cached->time = e->now + BLOCKS_MAX - i;
    }
    e->now += BLOCKS_MAX;
    while (e->setting.capacity > 0 && e->cached_count > e->setting.capacity)
        evict_oldest(e);
}

static uint32_t predict(const struct experiment *e)
{
    uint32_t tokens = 0;

    for (size_t i = 0; i < e->text_count; i++) {
        uint32_t at;

        if (alignment_claim(&e->alignment, e->text[i].hash, &at) == 0)
            break;
        tokens = at;
    }
    return tokens < e->block_count * BLOCK_TOKENS ? tokens : e->block_count * BLOCK_TOKENS;
}

/* prompt_last: 0, or for an answer its prompt's last block. */
static void join(struct experiment *e, uint32_t tail_tokens, uint32_t cached_tokens,
                 uint64_t prompt_last)
{
    struct text_block text[TEXT_BLOCKS_MAX];
    struct alignment_record record = {
        .attempt = ++e->attempt, .blocks = text, .block_count = e->text_count};
    struct alignment_anchor anchor = {
        .attempt = e->attempt,
        .last_block = prompt_last != 0 ? prompt_last : e->blocks[e->block_count - 1].low,
        .is_answer = prompt_last != 0,
        .token_count = e->id_count,
        .tail_tokens = tail_tokens,
        .cached_tokens = cached_tokens};

    for (size_t i = 0; i < e->text_count; i++)
        text[i] = (struct text_block){e->text[i].hash, e->text[i].end};
    cr_assert(eq(int, alignment_record(&e->alignment, &record, 0), 0));
    alignment_anchor(&e->alignment, &anchor, 0);
    alignment_flush(&e->alignment, 0);
}

/* The engine goes on with the answer's tokens, which may part from those of its text anywhere. */
static void generate(struct experiment *e, struct snip answer)
{
    const char *text = e->corpus + answer.at;
    const bool is_other = below(e, 100) < e->setting.retokenised_percent;
    const size_t head = is_other ? 1 + below(e, answer.len - 1) : answer.len;

    put_text(e, text, head);
    if (is_other) {
        put_id(e, ID_ODD); /* as a rare token that spells what two usual ones do */
        put_text(e, text + head, answer.len - head);
    }
}

static void take_turn(struct experiment *e, struct conversation *c)
{
    const struct message answer = {"assistant", {snip(e, lognormal(e, 6.3, 0.9) + 10)}};
    const uint32_t tail_tokens = render(e, c->messages, c->count);
    uint32_t hit = 0, predicted, tokens = e->id_count;
    uint64_t prompt_last;

    name_blocks(e);
    name_text(e, c->messages, c->count);
    predicted = predict(e);
    while (hit < e->block_count && cached_at(e, e->blocks[hit])->time != NEVER)
        hit++;
    e->prompt_tokens += tokens;
    e->hit_tokens += hit * BLOCK_TOKENS;
    e->predicted_tokens += predicted;
    e->error_tokens += fabs((double)predicted - hit * BLOCK_TOKENS);
    e->errors[e->request_count++] = (uint32_t)abs((int)(predicted / BLOCK_TOKENS) - (int)hit);
    cache_blocks(e);
    join(e, tail_tokens, hit * BLOCK_TOKENS, 0);

    prompt_last = e->blocks[e->block_count - 1].low;
    c->messages[c->count++] = answer;
    generate(e, answer.parts[0]);
    name_blocks(e);
    name_text(e, c->messages, c->count);
    cache_blocks(e);
    if (!e->setting.has_no_answers)
        join(e, 0, UINT32_MAX, prompt_last);
    c->messages[c->count++] = (struct message){"user", {snip(e, lognormal(e, 5, 1) + 10)}};
}

static void begin_conversations(struct experiment *e)
{
    static const size_t lengths[] = {800, 2500, 6000, 12000};
    struct snip systems[6], documents[5];

    for (size_t i = 0; i < array_count(systems); i++)
        systems[i] = snip(e, lengths[below(e, 4)]);
    for (size_t i = 0; i < array_count(documents); i++)
        documents[i] = snip(e, 9000);
    for (size_t i = 0; i < CONVERSATIONS; i++) {
        struct conversation *c = &e->conversations[i];

        c->count = 2;
        c->messages[0] = (struct message){"system", {systems[below(e, 6)]}};
        c->messages[1] = (struct message){"user", {{0, 0}, snip(e, lognormal(e, 5.5, 1) + 20)}};
        if (below(e, 100) < e->setting.mid_percent) {
            c->messages[1].parts[0] = documents[below(e, 5)];
            c->messages[1].parts[0].len = 9000 / 4 + below(e, 9000 * 3 / 4);
        }
    }
}

static int compare(const void *a, const void *b)
{
    const uint32_t *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

static void begin(struct experiment *e, struct setting setting)
{
    struct alignment_config config = {.secret = e->secret,
                                      .token_nodes_max = 400000,
                                      .text_nodes_max = 100000,
                                      .depth_max = 4096,
                                      .attempts_max = 64,
                                      .wait_ms = 1000,
                                      .groups = 1};

    *e = (struct experiment){.setting = setting, .random = 1};
    digest_secret_derive(e->secret, "experiment", 10);
    cr_assert(eq(int, alignment_init(&e->alignment, config), 0));
    block_map_init(&e->places, 64 << 20);
    e->corpus = calloc(1, CORPUS_BYTES);
    e->conversations = calloc(CONVERSATIONS, sizeof *e->conversations);
    e->ids = calloc(TOKENS_MAX, sizeof *e->ids);
    e->blocks = calloc(BLOCKS_MAX, sizeof *e->blocks);
    e->text = calloc(TEXT_BLOCKS_MAX, sizeof *e->text);
    e->cache = calloc(1 << 19, sizeof *e->cache);
    e->errors = calloc(CONVERSATIONS * MESSAGES_MAX, sizeof *e->errors);
    write_corpus(e);
    begin_conversations(e);
}

static void end(struct experiment *e)
{
    alignment_release(&e->alignment);
    block_map_release(&e->places);
    free(e->corpus);
    free(e->conversations);
    free(e->ids);
    free(e->blocks);
    free(e->text);
    free(e->cache);
    free(e->errors);
}

/* Runs it all; the mean error in percent of prompt tokens is at most error_max, and the median one
 * in the engine's blocks median_max. */
static void run(struct setting setting, double error_max, uint32_t median_max)
{
    struct experiment e;
    double error;
    begin(&e, setting);

    for (size_t turns = 0; turns < CONVERSATIONS * 5; turns++) {
        struct conversation *c = &e.conversations[below(&e, CONVERSATIONS)];

        if (c->count + 2 <= MESSAGES_MAX)
            take_turn(&e, c);
    }
    error = 100 * e.error_tokens / e.prompt_tokens;
    qsort(e.errors, e.request_count, sizeof *e.errors, compare);
    fprintf(stderr,
            "%s, cut at %u: requests %zu, hit %.3f, predicted %.3f, error %.2f %% of prompt, "
            "blocks: median %u, p90 %u, p99 %u; answers kept %" PRIu64 ", parted %" PRIu64
            ", share %.2f\n",
            setting.name, setting.cut_bytes_min, e.request_count, e.hit_tokens / e.prompt_tokens,
            e.predicted_tokens / e.prompt_tokens, error, e.errors[e.request_count / 2],
            e.errors[e.request_count * 9 / 10], e.errors[e.request_count * 99 / 100],
            e.alignment.stats.answers_kept, e.alignment.stats.answers_parted,
            e.alignment.answer_share);

    cr_assert(gt(sz, e.request_count, 500));
    cr_assert(gt(dbl, e.hit_tokens / e.prompt_tokens, 0.3));
    cr_assert(le(dbl, error, error_max), "%.2f %%", error);
    cr_assert(le(u32, e.errors[e.request_count / 2], median_max));
    cr_assert(eq(u64, e.alignment.stats.unfit + e.alignment.stats.lost, 0));
    cr_assert(eq(u64, e.alignment.stats.flipped, 0)); /* the template never changes old text */
    end(&e);
}

TestSuite(alignment_experiment, .fini = leak_check);

Test(alignment_experiment, without_pressure)
{
    run((struct setting){.name = "no pressure", .cut_bytes_min = 64}, 0.25, 0);
    run((struct setting){.name = "no pressure", .cut_bytes_min = 1}, 0.25, 0);
}

Test(alignment_experiment, prompts_that_part_in_mid_message)
{
    run((struct setting){.name = "mid-message", .mid_percent = 50, .cut_bytes_min = 64}, 0.3, 0);
    run((struct setting){.name = "mid-message", .mid_percent = 50, .cut_bytes_min = 1}, 0.3, 0);
}

Test(alignment_experiment, under_heavy_eviction)
{
    struct setting setting = {
        .name = "eviction", .capacity = 2500, .mid_percent = 30, .cut_bytes_min = 64};

    run(setting, 0.7, 0);
    setting.cut_bytes_min = 1;
    run(setting, 0.7, 0);
}

/* Where it parts is anywhere in the answer, so that the best guess is wrong by a quarter of it. */
Test(alignment_experiment, answers_that_become_other_tokens_are_discounted_as_far_as_they_do)
{
    struct setting setting = {
        .name = "1 in 10 re-tokenised", .cut_bytes_min = 64, .retokenised_percent = 10};

    run(setting, 0.8, 0); /* 0.67 when all that was generated is claimed */
    setting.name = "all re-tokenised";
    setting.retokenised_percent = 100;
    run(setting, 3, 2); /* 4.37 so */
}

Test(alignment_experiment, not_being_told_of_answers_costs_their_length)
{
    struct setting setting = {
        .name = "answers not told", .cut_bytes_min = 64, .has_no_answers = true};

    run(setting, 11, 10);
    setting.name = "answers not told, all re-tokenised";
    setting.retokenised_percent = 100;
    run(setting, 7, 8);
}
