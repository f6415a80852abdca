/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/runtime/option.h"

#include <stdio.h>

/*
 * DESIGN
 *
 * The two sources that are words of the process: its arguments and its environment.
 *
 *    --name value   --name=value   --list a b,c --next   --switch   --no-switch   --switch=false
 *
 * A value never begins with two dashes unless it is joined with "=": `--config --port 80` is a
 * missing value, not a file called "--port".
 */

struct flag_reader {
    struct option_set *set;
    int argc;
    const char *const *argv;
    int at;
};

static bool is_flag(const char *word)
{
    return word[0] == '-' && word[1] == '-' && word[2] != '\0';
}

static struct option_place flag_place(struct slice name, char text[80])
{
    snprintf(text, 80, "--%.*s", (int)(name.len < 64 ? name.len : 64), name.ptr);
    return (struct option_place){.origin = {.source = OPTION_FROM_FLAG}, .text = text};
}

static void read_values(struct flag_reader *reader, const struct option *option,
                        const struct option_place *place)
{
    bool has_value = reader->at < reader->argc && !is_flag(reader->argv[reader->at]);

    if (!has_value) {
        option_set_error(reader->set, place, "--help says which", "needs a value");
        return;
    }
    do
        option_set_assign(reader->set, option, slice_of_string(reader->argv[reader->at++]), place);
    while (option->kind == OPTION_LIST && reader->at < reader->argc &&
           reader->argv[reader->at][0] != '-');
}

/* --no-<name>: true when it was one, right or wrong. */
static bool read_negation(struct flag_reader *reader, struct slice name, bool has_value)
{
    struct slice rest = name;
    const struct option *option = NULL;
    char text[80];
    struct option_place place = flag_place(name, text);

    if (slice_starts_with(name, SLICE("no-"))) {
        rest = slice_skip(name, 3);
        option = option_table_find(reader->set->table, rest);
    }
    if (option == NULL)
        return false;
    if (option->kind != OPTION_BOOL || option->phase == OPTION_COMMAND)
        option_set_error(reader->set, &place, "give it a value instead", "--%s is no switch",
                         option->name);
    else if (has_value)
        option_set_error(reader->set, &place, "leave the = out", "takes no value");
    else
        option_set_assign(reader->set, option, SLICE("false"), &place);
    return true;
}

static void read_flag(struct flag_reader *reader, struct slice word)
{
    const char *equals = memchr(word.ptr, '=', word.len);
    struct slice name = equals == NULL ? word : slice_of(word.ptr, (size_t)(equals - word.ptr));
    const struct option *option = option_table_find(reader->set->table, name);
    char text[80], advice[160];
    struct option_place place = flag_place(name, text);

    if (option == NULL) {
        if (read_negation(reader, name, equals != NULL))
            return;
        option_table_advise(reader->set->table, name, "--", "--help lists them", advice);
        option_set_error(reader->set, &place, advice, "is no option");
        /* Its value, if that is what follows, would only look like a second mistake. */
        while (equals == NULL && reader->at < reader->argc && reader->argv[reader->at][0] != '-')
            reader->at++;
    } else if (equals != NULL) {
        option_set_assign(reader->set, option, slice_skip(word, name.len + 1), &place);
    } else if (option->kind == OPTION_BOOL) {
        option_set_assign(reader->set, option, SLICE("true"), &place);
    } else {
        read_values(reader, option, &place);
    }
}

void option_set_read_flags(struct option_set *set, int argc, const char *const *argv)
{
    struct flag_reader reader = {.set = set, .argc = argc, .argv = argv, .at = 1};

    while (reader.at < argc) {
        const char *word = argv[reader.at++];

        if (is_flag(word)) {
            read_flag(&reader, slice_of_string(word + 2));
        } else if (strcmp(word, "-h") == 0) {
            read_flag(&reader, SLICE("help"));
        } else {
            struct option_place place = {.origin = {.source = OPTION_FROM_FLAG}, .text = word};

            option_set_error(set, &place, "--help lists all options", "%s",
                             word[0] == '-' ? "options begin with two dashes"
                                            : "belongs to no option");
        }
    }
}

static const char *env_get(const char *const *envp, const char *name)
{
    size_t len = strlen(name);

    for (; *envp != NULL; envp++)
        if (strncmp(*envp, name, len) == 0 && (*envp)[len] == '=')
            return *envp + len + 1;
    return NULL;
}

void option_set_read_env(struct option_set *set, const char *const *envp)
{
    char name[96];

    for (size_t i = 0; i < set->table->count; i++) {
        const struct option *option = &set->table->options[i];
        const char *value;

        if (option->phase == OPTION_COMMAND && option->kind == OPTION_BOOL)
            continue;
        option_env_name(set->table, option, name);
        value = env_get(envp, name);
        /* Empty is unset: compose files pass on variables that may have no value. */
        if (value != NULL && value[0] != '\0') {
            struct option_place place = {.origin = {.source = OPTION_FROM_ENV}, .text = name};

            option_set_assign(set, option, slice_of_string(value), &place);
        }
    }
}
