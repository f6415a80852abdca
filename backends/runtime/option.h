/* SPDX-License-Identifier: Apache-2.0 */

/*
 * option: one table row per option gives its default, its place in a YAML file, its environment
 * twin, its flag, its line of --help and its line of the dump with the origin of the value. Values
 * end in the program's own plain struct, by offset. Reading goes on after an error, so that all of
 * them are seen at once. Knows no program's table. Start of a process, and each time that its
 * options are read again; one thread.
 *
 * Precedence: flag > environment > file > default, in whatever order the three are read.
 */
#ifndef BACKENDS_RUNTIME_OPTION_H
#define BACKENDS_RUNTIME_OPTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/arena.h"
#include "backends/runtime/buf.h"
#include "backends/runtime/excerpt.h"
#include "backends/runtime/exit_code.h"
#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"

/* What a value is, and the type of its field. */
enum option_kind {
    OPTION_TEXT,     /* const char *; "" by default, never NULL */
    OPTION_WORD,     /* const char *, one of the row's words, or any where the row has none */
    OPTION_ENUM,     /* int: place in the row's words */
    OPTION_INTEGER,  /* uint64_t */
    OPTION_DURATION, /* uint64_t, milliseconds: 1500, 1500ms, 10s, 5m, 1h */
    OPTION_BYTES,    /* uint64_t: 4096, 64KiB, 32MiB, 1GiB */
    OPTION_BOOL,     /* bool */
    OPTION_LIST,     /* struct option_list: words parted by commas or spaces, or repeated */
};

enum option_phase {
    OPTION_BOOT,    /* needs a restart */
    OPTION_RELOAD,  /* may change while the program runs */
    OPTION_COMMAND, /* says what to do now (--help, --config): never in the file or the dump */
};

struct option_list {
    const char **items; /* the set's: do not write */
    size_t count;
};

enum { OPTION_WHY_BYTES = 192 };

/* What only the program knows of a text: 0, or -EINVAL with a sentence in why. */
typedef int option_check_fn(struct slice text, char why[OPTION_WHY_BYTES]);

struct option {
    const char *name; /* "probe-interval-ms": the flag without dashes, the key of the file */
    enum option_kind kind;
    const char *default_text; /* read as any other value; NULL for an empty list or text */
    uint64_t min, max;        /* of numbers */
    const char *unit;         /* "ms", "bytes", "", ... for people */
    enum option_phase phase;
    const char *group;        /* heading in --help; groups appear by their first row */
    const char *help;         /* one or two sentences */
    const char *const *words; /* NULL-terminated, of WORD and ENUM */
    option_check_fn *check;   /* of TEXT and of each item of LIST; NULL: any text is fine */
    size_t offset;            /* of the field in the target */
};

/*
 * A program lists its options in an options.def, which it includes once for each thing that it
 * makes of them: OPTION(field, "name", KIND, "default", min, max, "unit", PHASE, GROUP, "help").
 * These two make the field of its struct, and the row; of each GROUP it defines the heading,
 * OPTION_GROUP_<GROUP>.
 */
#define OPTION_FIELD(field_, name_, kind_, ...) OPTION_TYPE_##kind_ field_;
#define OPTION_TYPE_TEXT                        const char *
#define OPTION_TYPE_WORD                        const char *
#define OPTION_TYPE_ENUM                        int
#define OPTION_TYPE_INTEGER                     uint64_t
#define OPTION_TYPE_DURATION                    uint64_t
#define OPTION_TYPE_BYTES                       uint64_t
#define OPTION_TYPE_BOOL                        bool
#define OPTION_TYPE_LIST                        struct option_list
#define OPTION_ROW(target_, field_, name_, kind_, default_, min_, max_, unit_, phase_, group_,     \
                   help_)                                                                          \
    {                                                                                              \
        .name = name_,                                                                             \
        .kind = OPTION_##kind_,                                                                    \
        .default_text = default_,                                                                  \
        .min = min_,                                                                               \
        .max = max_,                                                                               \
        .unit = unit_,                                                                             \
        .phase = OPTION_##phase_,                                                                  \
        .group = OPTION_GROUP_##group_,                                                            \
        .help = help_,                                                                             \
        .offset = offsetof(target_, field_),                                                       \
    },

/* The row called name, which must be one of them: words and checks are not in an options.def. */
struct option *option_row(struct option *rows, const char *name);

struct option_table {
    const struct option *options; /* by name, rising */
    size_t count;
    const char *env_prefix; /* "SAMOVAR_" */
};

/* Where a value came from; a higher one wins. */
enum option_source { OPTION_FROM_DEFAULT, OPTION_FROM_FILE, OPTION_FROM_ENV, OPTION_FROM_FLAG };

struct option_origin {
    enum option_source source;
    const char *file; /* of OPTION_FROM_FILE */
    unsigned line;
};

/* One mistake; the texts are the set's, and never NULL. */
struct option_error {
    const char *where;   /* "--port", "SAMOVAR_PORT", "router.yaml:3:7: port" */
    const char *what;    /* "\"70000\" is out of range" */
    const char *advice;  /* "write 0 to 65535; the default is 8080", or "" */
    const char *excerpt; /* lines that show it in its file, or "" */
};

enum { OPTION_ERROR_COUNT_MAX = 64 }; /* that are kept; a file is not read beyond them */

/* Filled while reading; borrowed table and target must outlive it. */
struct option_set {
    const struct option_table *table;
    void *target;
    struct arena arena;            /* texts and lists that the target points to */
    struct option_origin *origins; /* one per row */
    struct option_error errors[OPTION_ERROR_COUNT_MAX];
    size_t error_count;        /* of those kept */
    size_t flag_error_count;   /* wrong use: exit 2 */
    size_t config_error_count; /* environment, file: exit 3 */
};

/* Where options are read from, as main() and environ have them. */
struct options_input {
    int argc;
    const char *const *argv;
    const char *const *envp;
};

/* Sets every field of target to its default. A default that does not parse is a bug: aborts. */
void option_set_init(struct option_set *set, const struct option_table *table, void *target);

/* argv[1..argc). Every argument belongs to a flag. */
void option_set_read_flags(struct option_set *set, int argc, const char *const *argv);

/* envp as environ. Variables with the prefix that name no option are left alone: agents and
 * scripts of the same host share the prefix. */
void option_set_read_env(struct option_set *set, const char *const *envp);

/* The YAML file at path, at most 1 MiB. */
void option_set_read_file(struct option_set *set, const char *path);

/* The same of text in memory; path is only named in errors and origins. */
void option_set_read_yaml(struct option_set *set, const char *path, struct slice text);

/* Where the value of the option called name came from; the option must exist. */
struct option_origin option_set_origin(const struct option_set *set, const char *name);

/* True when something was wrong: errors holds why. */
bool option_set_has_errors(const struct option_set *set);

/* How a program ends for them: EXIT_CODE_USAGE where a flag is wrong, EXIT_CODE_CONFIG where only
 * environment or file are, or EXIT_CODE_OK. */
int option_set_exit_code(const struct option_set *set);

/* Refuses the option called name for what it is together with others: an error of nobody's line,
 * which counts where the value came from; as a flag's where nobody gave one. */
void option_set_refuse(struct option_set *set, const char *name, const char *what,
                       const char *advice);

/* All errors for people, as a compiler prints them. */
MUST_CHECK int option_set_write_errors(const struct option_set *set, struct buf *out);

/* The same, to standard error. */
void option_set_print_errors(const struct option_set *set);

/* One line an option, as YAML that reads back to the same values, with the origin as a comment. */
MUST_CHECK int option_set_dump(const struct option_set *set, struct buf *out);

/* The value of the option alone, as the dump writes it. */
MUST_CHECK int option_set_write_value(const struct option_set *set, const struct option *option,
                                      struct buf *out);

/* Where that value came from, as the dump writes it: "router.yaml:3", "SAMOVAR_PORT", "default". */
MUST_CHECK int option_set_write_origin(const struct option_set *set, const struct option *option,
                                       struct buf *out);

/* Whether two sets of one table have the same value for the option, wherever it came from. */
bool option_set_is_same(const struct option_set *set, const struct option_set *other,
                        const struct option *option);

/* Takes the option's value and origin over from another set of the same table: a copy. */
void option_set_carry(struct option_set *set, const struct option_set *source,
                      const struct option *option);

/* The options, grouped and wrapped, each with its environment name and default. */
MUST_CHECK int option_table_help(const struct option_table *table, struct buf *out);

/* The same as the OPTIONS section of a man page, in roff. */
MUST_CHECK int option_table_man(const struct option_table *table, struct buf *out);

/* text as roff writes it: nothing in it is read as a request or a special character. */
MUST_CHECK int option_man_text(struct slice text, struct buf *out);

/* Frees what the target points to as well. */
void option_set_release(struct option_set *set);

/*
 * For readers of one source (flags, env, YAML).
 */

/* A place to name in an error and in an origin. */
struct option_place {
    struct option_origin origin;
    const char *text;              /* "--port", "SAMOVAR_PORT", "router.yaml:3:7: port" */
    const struct excerpt *excerpt; /* its line of the file; NULL: there is none to show */
};

/* NULL when there is none; underscores count as dashes. */
const struct option *option_table_find(const struct option_table *table, struct slice name);

/* SAMOVAR_PROBE_INTERVAL_MS of probe-interval-ms. */
void option_env_name(const struct option_table *table, const struct option *option, char name[96]);

/*
 * Reads value into the row's field unless a higher source has set it; a bad value is noted as an
 * error in any case. Items of a list are appended to those of the same source.
 */
void option_set_assign(struct option_set *set, const struct option *option, struct slice value,
                       const struct option_place *place);

/* Notes an error of place: what is wrong, and advice what to write instead ("" where that is
 * plain). */
void option_set_error(struct option_set *set, const struct option_place *place, const char *advice,
                      const char *format, ...) __attribute__((format(printf, 4, 5)));

/* "did you mean --port?" into advice (160 bytes), or unknown where nothing is near. */
void option_table_advise(const struct option_table *table, struct slice name, const char *dashes,
                         const char *unknown, char advice[160]);

#endif
