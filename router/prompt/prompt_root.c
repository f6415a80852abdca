/* SPDX-License-Identifier: Apache-2.0 */

#include "router/prompt/prompt_root.h"

#include "hashing/digest.h"
#include "hashing/stream_identity.h"
#include "router/prompt/value_digest.h"

/*
 * DESIGN
 *
 * The root holds whatever may change the prompt from its first byte on:
 *   - which stream, model (another model, or LoRA by name, shares nothing)
 *   - every member named in root_keys[], by digest of its whole value, unknown members of
 *     chat_template_kwargs included: templates read what they like from there
 *   - tool_choice, as far as it is "none" beside tools: some engines leave the tools out then; any
 *     other choice prints all of them
 *   - what responses and messages call by another name or keep deeper: the effort, under chat's
 *     name for it, the kind of thinking (its budget and summary decide about the answer), and that
 *     the front may be cut away (truncation)
 * Not in it: sampling, n, stop, logit_bias, response_format, stream, user, metadata,
 * prompt_cache_key, previous_response_id, priority and the like, which decide what is answered;
 * add_generation_prompt and continue_final_message, which change only what follows the last
 * message; fields nobody knows, as engines ignore those.
 *
 * Members are added up as member_digest() gives them, so their order in the body does not matter.
 */

/* Fields of the root's digest. */
enum { ROOT_MODEL, ROOT_NUMBERS };

static const struct slice root_keys[] = {
    {"add_special_tokens", 18},
    {"cache_salt", 10}, /* a tenant's wall */
    {"chat_template", 13},
    {"chat_template_kwargs", 20},
    {"documents", 9},        /* printed first by templates for retrieval */
    {"enable_thinking", 15}, /* template arguments that some engines take at the top */
    {"functions", 9},        /* tools of old */
    {"lora_name", 9},
    {"lora_path", 9},
    {"lora_request", 12},
    {"media_io_kwargs", 15}, /* how images and video become tokens */
    {"mm_processor_kwargs", 19},
    {"previous_input_messages", 23}, /* responses: turns before the input, in another form */
    {"prompt_embeds", 13},
    {"reasoning", 9},
    {"reasoning_effort", 16}, /* printed into the system message */
    {"safe_prompt", 11},      /* puts a system message in front */
    {"suffix", 6},            /* fill-in-the-middle prints it first */
    {"thinking", 8},
    {"truncate_prompt_tokens", 22}, /* cuts the front away */
};

static bool is_root_key(struct slice key)
{
    for (size_t i = 0; i < array_count(root_keys); i++)
        if (slice_eq(root_keys[i], key))
            return true;
    return false;
}

/* The effort as chat spells it, so that the APIs share a root. */
static uint64_t effort_digest(const uint8_t *secret, struct json_value effort)
{
    return value_is_empty(effort)
               ? 0
               : member_digest(secret, (struct json_member){SLICE("reasoning_effort"), effort});
}

/* `reasoning` of responses: what of it the prompt shows. */
static uint64_t reasoning_digest(const uint8_t *secret, struct json_value reasoning)
{
    struct json_iterator members = json_iterate(reasoning);
    struct json_member member;
    uint64_t sum = 0;

    while (json_next_member(&members, &member)) {
        if (slice_eq(member.key, SLICE("effort")))
            sum += effort_digest(secret, member.value);
        else if (!slice_eq(member.key, SLICE("summary")) &&
                 !slice_eq(member.key, SLICE("generate_summary")) && !value_is_empty(member.value))
            sum += member_digest(secret, member);
    }
    return sum;
}

/* What a member says of its own in responses. False: it is none of these. */
static bool add_of_responses(const uint8_t *secret, struct json_member member, uint64_t *sum)
{
    if (slice_eq(member.key, SLICE("reasoning"))) {
        *sum += reasoning_digest(secret, member.value);
        return true;
    }
    if (!slice_eq(member.key, SLICE("truncation")))
        return false;
    if (slice_eq(json_string(member.value), SLICE("auto")))
        *sum += member_digest(secret, member);
    return true;
}

/* The same in messages. */
static bool add_of_messages(const uint8_t *secret, struct json_member member, uint64_t *sum)
{
    struct json_value type;

    if (slice_eq(member.key, SLICE("output_config"))) {
        *sum += effort_digest(secret, json_get(member.value, "effort"));
        return true;
    }
    if (!slice_eq(member.key, SLICE("thinking")))
        return false;
    type = json_get(member.value, "type");
    if (!value_is_empty(type))
        *sum += member_digest(secret, (struct json_member){member.key, type});
    return true;
}

/* A member that one API alone reads so. False: it is none of these. */
static bool add_own_member(const uint8_t *secret, enum api api, struct json_member member,
                           uint64_t *sum)
{
    switch (api) {
    case API_RESPONSES:
        return add_of_responses(secret, member, sum);
    case API_MESSAGES:
        return add_of_messages(secret, member, sum);
    default:
        return false;
    }
}

/* Of the choice's two spellings: a string, or an object with a type (messages). */
static bool is_none(struct json_value choice)
{
    return slice_eq(json_string(choice), SLICE("none")) ||
           slice_eq(json_string(json_get(choice, "type")), SLICE("none"));
}

static uint64_t stream_of(const struct api_request *request)
{
    if (request->api != API_COMPLETIONS)
        return 'C';
    return request->is_token_prompt ? 'I' : 'T';
}

uint64_t prompt_root(const uint8_t *secret, const struct api_request *request)
{
    struct json_iterator members = json_iterate(request->root);
    bool has_tools = false, drops_tools = false;
    struct json_member member;
    struct digest root;
    uint64_t sum = 0;

    while (json_next_member(&members, &member)) {
        if (add_own_member(secret, request->api, member, &sum))
            continue;
        if (is_root_key(member.key))
            sum += value_is_empty(member.value) ? 0 : member_digest(secret, member);
        else if (slice_eq(member.key, SLICE("tools")))
            has_tools = !value_is_empty(member.value);
        else if (slice_eq(member.key, SLICE("tool_choice")))
            drops_tools = is_none(member.value);
    }
    const uint64_t numbers[] = {STREAM_VERSION, stream_of(request), sum, has_tools && drops_tools};

    digest_begin(&root, secret, DIGEST_ROOT);
    digest_field(&root, ROOT_MODEL, request->model.ptr, request->model.len);
    digest_field_u64s(&root, ROOT_NUMBERS, numbers, array_count(numbers));
    return digest_end(&root);
}
