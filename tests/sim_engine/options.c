/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/sim_engine/options.h"

#include "tests/sim_engine/page_memory.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

/*
 * DESIGN
 *
 * One row an option, in alphabetical order; defaults are read by the code that reads arguments, so
 * they cannot differ in form. Numbers are doubles: every whole number in the table's ranges is
 * exact in one.
 */

enum option_kind { OPTION_NUMBER, OPTION_COUNT, OPTION_TEXT, OPTION_LORA, OPTION_FAULT };

struct option_row {
    const char *name;
    enum option_kind kind; /* OPTION_COUNT: a number without fraction */
    size_t offset;         /* of the field in struct options */
    const char *initial;   /* NULL: a list that begins empty */
    double min, max;
    const char *help;
};

#define AT(field) offsetof(struct options, field)

/* clang-format off */
static const struct option_row rows[] = {
    {"block-size", OPTION_COUNT, AT(block_size), "16", 1, 1024, "tokens of a cache block"},
    {"blocks", OPTION_COUNT, AT(blocks), "8192", 2, 1e7,
     "cache blocks, the one the engine keeps to itself included"},
    {"connector", OPTION_TEXT, AT(connector), "", 0, 0,
     "keep blocks with the agent of the node, which listens on this Unix socket"},
    {"connector-lookup-ms", OPTION_COUNT, AT(connector_lookup_ms), "2", 1, 10000,
     "an agent that does not say by then what it has, has nothing"},
    {"connector-worker", OPTION_TEXT, AT(connector_worker), "", 0, 0,
     "what the agent calls this engine; empty: http://HOST:PORT"},
    {"date", OPTION_TEXT, AT(date), "", 0, 0, "what the dated template writes; empty: today, UTC"},
    {"day-s", OPTION_NUMBER, AT(day_s), "86400", 0.001, 1e9,
     "seconds of a day of the dated template: fewer, and its date changes while one looks"},
    {"decode-ms", OPTION_NUMBER, AT(decode_ms), "6", 0, 1e6, "of a step that decodes"},
    {"decode-ms-per-request", OPTION_NUMBER, AT(decode_ms_per_request), "0.35", 0, 1e6,
     "added to it for each request that decodes"},
    {"fault", OPTION_FAULT, AT(faults), NULL, 0, 0, "misbehave, see below; may be repeated"},
    {"host", OPTION_TEXT, AT(host), "127.0.0.1", 0, 0, "address to listen on"},
    {"keep-alive-ms", OPTION_COUNT, AT(keep_alive_ms), "5000", 1, 1e9,
     "idle connections are closed after that, as uvicorn does"},
    {"kv-buffer-steps", OPTION_COUNT, AT(kv_buffer_steps), "10000", 1, 1e6,
     "batches of KV events that can be replayed"},
    {"kv-dialect", OPTION_TEXT, AT(kv_dialect_name), "map", 0, 0,
     "map or array: how an event is encoded"},
    {"kv-events", OPTION_TEXT, AT(kv_events), "", 0, 0,
     "publish KV events there: tcp://127.0.0.1:*, any free port, or ipc://PATH"},
    {"kv-hashes", OPTION_TEXT, AT(kv_hashes_name), "int", 0, 0,
     "int or bytes: block hashes in events"},
    {"kv-replay", OPTION_TEXT, AT(kv_replay), "", 0, 0, "answer requests to replay them there"},
    {"kv-topic", OPTION_TEXT, AT(kv_topic), "", 0, 0, "the first frame of what is published"},
    {"lora", OPTION_LORA, AT(loras), NULL, 0, 0, "one more model name with a cache of its own; may be repeated"},
    {"max-model-len", OPTION_COUNT, AT(max_model_len), "0", 0, 1e9,
     "tokens of prompt and answer; 0: what the cache holds"},
    {"max-running", OPTION_COUNT, AT(max_running), "256", 1, 65536, "requests in one batch"},
    {"model", OPTION_TEXT, AT(model), "sim", 0, 0, "name to serve"},
    {"page-bytes", OPTION_COUNT, AT(page_bytes), "16384", 256, 1 << 28,
     "of a block's keys and values, with --connector; a multiple of 256"},
    {"port", OPTION_COUNT, AT(port), "8000", 0, 65535, "0: any free one"},
    {"prefill-tps", OPTION_NUMBER, AT(prefill_tps), "8000", 1, 1e12, "prompt tokens read a second"},
    {"retokenise", OPTION_NUMBER, AT(retokenise), "0", 0, 100,
     "percent of answers whose text tokenises otherwise than they were made"},
    {"seed", OPTION_COUNT, AT(seed), "1", 0, 9e15, "another one, other answers"},
    {"speedup", OPTION_NUMBER, AT(speedup), "1", 0.001, 1e6, "time runs that much faster"},
    {"stored-responses", OPTION_COUNT, AT(stored_responses), "1024", 0, 1e6,
     "answers of /v1/responses to keep; 0: none, as vLLM by default"},
    {"template", OPTION_TEXT, AT(template_name), "plain", 0, 0,
     "plain, drop_reasoning, tools_late or dated"},
};
/* clang-format on */

static void *field_of(const struct option_row *row, struct options *options)
{
    return (char *)options + row->offset;
}

static bool set_number(const struct option_row *row, struct options *options, const char *text)
{
    double *field = field_of(row, options);
    char *end;

    *field = strtod(text, &end);
    return end != text && *end == '\0' && *field >= row->min && *field <= row->max &&
           (row->kind != OPTION_COUNT || *field == floor(*field));
}

/* false: message is written. */
static bool add_fault(struct options *options, const char *text, char *message, size_t size)
{
    struct parse_error error;

    if (options->fault_count == OPTIONS_FAULT_COUNT_MAX) {
        snprintf(message, size, "--fault may be given %d times.", OPTIONS_FAULT_COUNT_MAX);
        return false;
    }
    if (fault_parse(slice_of_string(text), &options->faults[options->fault_count], &error) < 0) {
        snprintf(message, size, "--fault %s: at byte %zu: %s", text, error.offset, error.message);
        return false;
    }
    options->fault_count++;
    return true;
}

static bool set(const struct option_row *row, struct options *options, const char *text,
                char *message, size_t size)
{
    const char **text_field = field_of(row, options);

    switch (row->kind) {
    case OPTION_NUMBER:
    case OPTION_COUNT:
        if (set_number(row, options, text))
            return true;
        snprintf(message, size, "--%s must be a %s from %.15g to %.15g.", row->name,
                 row->kind == OPTION_COUNT ? "whole number" : "number", row->min, row->max);
        return false;
    case OPTION_TEXT:
        *text_field = text;
        return true;
    case OPTION_LORA:
        if (options->lora_count == ENGINE_LORA_COUNT_MAX) {
            snprintf(message, size, "--lora may be given %d times.", ENGINE_LORA_COUNT_MAX);
            return false;
        }
        options->loras[options->lora_count++] = text;
        return true;
    case OPTION_FAULT:
        return add_fault(options, text, message, size);
    }
    return false;
}

static const struct option_row *find(struct slice name)
{
    for (size_t i = 0; i < array_count(rows); i++) {
        if (slice_eq(name, slice_of_string(rows[i].name)))
            return &rows[i];
    }
    return NULL;
}

/* Reads argv[i], and argv[i + 1] where the value is not behind '='. Returns how many it used; 0:
 * message is written. */
static int read_argument(char **argv, int i, struct options *options, char *message, size_t size)
{
    struct slice argument = slice_of_string(argv[i]);
    const char *equals = strchr(argv[i], '=');
    const char *value = equals != NULL ? equals + 1 : argv[i + 1];
    const struct option_row *row = NULL;

    if (slice_starts_with(argument, SLICE("--"))) {
        size_t end = equals != NULL ? (size_t)(equals - argv[i]) : argument.len;
        row = find(slice_of(argv[i] + 2, end - 2));
    }
    if (row == NULL) {
        snprintf(message, size, "There is no option %s; see --help.", argv[i]);
        return 0;
    }
    if (value == NULL) {
        snprintf(message, size, "--%s needs a value.", row->name);
        return 0;
    }
    if (!set(row, options, value, message, size))
        return 0;
    return equals != NULL ? 1 : 2;
}

/* Those names of the table that stand for an enum. false: message is written. */
static bool read_names(struct options *options, char *message, size_t size)
{
    bool is_array = strcmp(options->kv_dialect_name, "array") == 0;
    bool is_bytes = strcmp(options->kv_hashes_name, "bytes") == 0;

    if (chat_habit_parse(slice_of_string(options->template_name), &options->habit) < 0) {
        snprintf(message, size, "--template must be plain, drop_reasoning, tools_late or dated.");
        return false;
    }
    if (!is_array && strcmp(options->kv_dialect_name, "map") != 0) {
        snprintf(message, size, "--kv-dialect must be map or array.");
        return false;
    }
    if (!is_bytes && strcmp(options->kv_hashes_name, "int") != 0) {
        snprintf(message, size, "--kv-hashes must be int or bytes.");
        return false;
    }
    options->kv_dialect = is_array ? KV_DIALECT_ARRAY : KV_DIALECT_MAP;
    options->kv_hash_form = is_bytes ? KV_HASH_BYTES : KV_HASH_INT;
    return true;
}

enum options_verdict options_parse(int argc, char **argv, struct options *options, char *message,
                                   size_t message_size)
{
    *options = (struct options){0};
    for (size_t i = 0; i < array_count(rows); i++) {
        bool is_right = rows[i].initial == NULL ||
                        set(&rows[i], options, rows[i].initial, message, message_size);
        assert(is_right);
    }
    for (int i = 1; i < argc;) {
        int used;

        if (strcmp(argv[i], "--help") == 0)
            return OPTIONS_HELP;
        if (strcmp(argv[i], "--version") == 0)
            return OPTIONS_VERSION;
        used = read_argument(argv, i, options, message, message_size);
        if (used == 0)
            return OPTIONS_WRONG;
        i += used;
    }
    if (options->kv_replay[0] != '\0' && options->kv_events[0] == '\0') {
        snprintf(message, message_size, "--kv-replay needs --kv-events.");
        return OPTIONS_WRONG;
    }
    if (fmod(options->page_bytes, PAGE_GRAIN_BYTES) != 0) {
        snprintf(message, message_size, "--page-bytes must be a multiple of %d.", PAGE_GRAIN_BYTES);
        return OPTIONS_WRONG;
    }
    return read_names(options, message, message_size) ? OPTIONS_RUN : OPTIONS_WRONG;
}

void options_print_help(void)
{
    printf("samovar-sim: a simulated inference engine with the OpenAI API of vLLM.\n\n"
           "usage: samovar-sim [--OPTION VALUE]...\n\n");
    for (size_t i = 0; i < array_count(rows); i++)
        printf("  --%-22s %s%s%s%s\n", rows[i].name, rows[i].help,
               rows[i].initial != NULL && rows[i].initial[0] != '\0' ? " (" : "",
               rows[i].initial != NULL ? rows[i].initial : "",
               rows[i].initial != NULL && rows[i].initial[0] != '\0' ? ")" : "");
    printf(
        "\nA fault is KIND[=ARG][,CONDITION]...; the header x-sim-fault: FAULT aims at its own "
        "request.\nThe first that hits a request acts. Kinds:\n%s"
        "Conditions:\n"
        "  how=fin|rst: how die_at_byte, die_at_event and close_after_request close (fin)\n"
        "  path=PREFIX: only requests whose target begins so\n"
        "  port=N: only the engine that listens there\n"
        "  every=N, nth=N, p=SHARE: each Nth of them, only the Nth, that share at random\n"
        "    (for those that begin with kv or kill: of batches, of what the connector sends; they\n"
        "    know port beside these, no more)\n"
        "  when=stream|plain: only requests for a stream, or for a whole answer\n",
        fault_help());
}
