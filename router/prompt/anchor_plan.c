/* SPDX-License-Identifier: Apache-2.0 */

#include "router/prompt/anchor_plan.h"

#include <assert.h>
#include <errno.h>

#include "router/prompt/value_digest.h"

/*
 * DESIGN
 *
 * An engine's /tokenize takes the bodies of chat and completions as they are: what it does not know
 * it passes over. So it is exact as long as a body says nothing that generation reads and /tokenize
 * does not. A difference in the number of tokens would be noticed (usage says it too); one in the
 * ids alone would not, as of reasoning_effort "low" and "high". Bodies that name such things, and
 * those of other APIs, are asked about at <path>/render, which newer engines have beside each of
 * their endpoints (vLLM with --enable-scale-out): it does all that the endpoint does up to the
 * prompt's ids. /tokenize comes first because more engines have it.
 *
 * The template's tail ("<|im_start|>assistant\n") stands behind the text that was hashed. How long
 * it is depends on the template and its arguments, not on the conversation. Of responses and
 * messages it cannot be asked: what chats with the same template showed is taken, else none, which
 * puts the end of the text a few tokens too far.
 */

/* What /tokenize passes over. */
static const struct slice render_keys[] = {
    {"documents", 9}, {"enable_thinking", 15},  {"reasoning", 9},
    {"thinking", 8},  {"reasoning_effort", 16},
};

/* What keeps a prompt from being joined at all, or is another engine's and might do so. */
static const struct slice odd_keys[] = {
    {"functions", 9},
    {"kv_transfer_params", 18}, /* may carry the prompt's ids, which are used then */
    {"lora_name", 9},
    {"lora_path", 9},
    {"lora_request", 12},
    {"previous_input_messages", 23},
    {"prompt_embeds", 13},
    {"safe_prompt", 11},
    {"suffix", 6},
    {"truncate_prompt_tokens", 22},
};

static const char *const outcome_names[] = {
#define OUTCOME_NAME(constant, name) [constant] = name,
    ANCHOR_OUTCOME_ROWS(OUTCOME_NAME)
#undef OUTCOME_NAME
};

static const char *const target_paths[] = {
#define TARGET_PATH(constant, path) [constant] = path,
    ANCHOR_TARGET_ROWS(TARGET_PATH)
#undef TARGET_PATH
};

const char *anchor_target_path(enum anchor_target target)
{
    assert(target < ANCHOR_TARGET_COUNT);

    return target_paths[target];
}

const char *anchor_outcome_name(enum anchor_outcome outcome)
{
    assert(outcome < ANCHOR_OUTCOME_COUNT);

    return outcome_names[outcome];
}

static bool is_among(struct slice key, const struct slice *keys, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (slice_eq(keys[i], key))
            return true;
    }
    return false;
}

static bool is_false(struct json_value value)
{
    return json_type(value) == JSON_BOOL && !json_bool(value);
}

/* What the members of a body say. */
struct findings {
    bool is_odd;
    bool needs_render;
    bool has_tools;
    bool drops_tools; /* tool_choice none: some engines print no tools then */
    bool has_echo;
    bool has_generation_prompt; /* the member is there, whatever it says */
    bool is_open;               /* nothing is put behind the text */
    uint64_t template_sum;
    struct slice salt;
};

static void find_in(const uint8_t *secret, struct json_member member, struct findings *found)
{
    bool is_empty = value_is_empty(member.value);

    if (is_among(member.key, odd_keys, array_count(odd_keys))) {
        found->is_odd |= !is_empty;
    } else if (is_among(member.key, render_keys, array_count(render_keys))) {
        found->needs_render |= !is_empty;
        found->template_sum += is_empty ? 0 : member_digest(secret, member);
    } else if (slice_eq(member.key, SLICE("truncation")))
        found->is_odd |= slice_eq(json_string(member.value), SLICE("auto"));
    else if (slice_eq(member.key, SLICE("tools")))
        found->has_tools = !is_empty;
    else if (slice_eq(member.key, SLICE("tool_choice")))
        found->drops_tools = slice_eq(json_string(member.value), SLICE("none"));
    else if (slice_eq(member.key, SLICE("echo")))
        found->has_echo = json_bool(member.value);
    else if (slice_eq(member.key, SLICE("cache_salt")))
        found->salt = json_string(member.value);
    else if (slice_eq(member.key, SLICE("continue_final_message")))
        found->is_open |= json_bool(member.value);
    else if (slice_eq(member.key, SLICE("add_generation_prompt"))) {
        found->has_generation_prompt = true;
        found->is_open |= is_false(member.value);
    } else if ((slice_eq(member.key, SLICE("chat_template")) ||
                slice_eq(member.key, SLICE("chat_template_kwargs"))) &&
               !is_empty)
        found->template_sum += member_digest(secret, member);
}

static enum anchor_outcome why_not(const struct api_request *request,
                                   const struct prompt_blocks *prompt, const struct findings *found)
{
    if (api_work(request->api) != API_WORK_GENERATE || request->is_background)
        return ANCHOR_API;
    if (request->choice_count != 1 || request->prompt_count != 1 || found->has_echo)
        return ANCHOR_SHAPE;
    if (prompt->has_media)
        return ANCHOR_MEDIA;
    return found->is_odd ? ANCHOR_FIELDS : ANCHOR_POSTED; /* nothing is in the way */
}

static enum anchor_target target_of(enum api api, const struct findings *found)
{
    bool needs_render = found->needs_render || (found->has_tools && found->drops_tools);

    switch (api) {
    case API_RESPONSES:
        return ANCHOR_TARGET_RENDER_RESPONSES;
    case API_MESSAGES:
        return ANCHOR_TARGET_RENDER_MESSAGES;
    case API_COMPLETIONS:
        return needs_render ? ANCHOR_TARGET_RENDER_TEXT : ANCHOR_TARGET_TEXT;
    default:
        return needs_render ? ANCHOR_TARGET_RENDER_CHAT : ANCHOR_TARGET_CHAT;
    }
}

static void plan_tail(struct anchor_plan *plan, enum api api, const struct findings *found)
{
    if (api == API_COMPLETIONS || found->is_open)
        return;
    plan->template_name = found->template_sum | 1;
    plan->must_ask_tail = api == API_CHAT;
    plan->may_ask_tail = api == API_CHAT && !found->has_generation_prompt;
}

int anchor_plan_make(const uint8_t *secret, const struct api_request *request,
                     const struct prompt_blocks *prompt, struct arena *arena,
                     struct anchor_plan *plan)
{
    struct json_iterator members = json_iterate(request->root);
    struct findings found = {0};
    struct json_member member;

    while (json_next_member(&members, &member))
        find_in(secret, member, &found);
    *plan = (struct anchor_plan){.why_not = why_not(request, prompt, &found)};
    if (plan->why_not != ANCHOR_POSTED)
        return 0;
    plan->source = request->is_token_prompt ? ANCHOR_SOURCE_IDS : ANCHOR_SOURCE_ENGINE;
    plan->target = target_of(request->api, &found);
    plan_tail(plan, request->api, &found);
    if (found.salt.len == 0)
        return 0;
    plan->salt = arena_copy(arena, found.salt);
    return plan->salt.ptr != NULL ? 0 : -ENOMEM;
}
