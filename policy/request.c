/* request.c - see request.h. */
#include "policy/request.h"

#include <errno.h>
#include <string.h>

#include "policy/out.h"

#define SCHEMA "bsguard.request/1"

struct problem {
  char *why;
  size_t room;
};

/* "micro_batch is 0: an integer of at least 1 is allowed" */
static int wrong(struct problem problem, const struct bsg_json_document *d, const struct bsg_json_value *value,
                 const char *name, const char *allowed) {
  struct bsg_out out;
  char text[64];
  size_t length = value ? value->end - value->start : 0;

  length = length < sizeof(text) - 1 ? length : sizeof(text) - 1;
  if (value)
    memcpy(text, d->text + value->start, length);
  text[length] = '\0';
  bsg_out_buffer(&out, problem.why, problem.room);
  bsg_out_text(&out, name);
  bsg_out_text(&out, value ? " is " : " is missing");
  bsg_out_clean(&out, text, sizeof(text));
  bsg_out_format(&out, ": %s", allowed);
  bsg_out_string(&out);
  return -EINVAL;
}

static bool given(const struct bsg_json_value *value) {
  return value && value->type != BSG_JSON_NULL;
}

int bsg_request_parse(struct bsg_json_document *d, const char *text, size_t length, struct bsg_request *request,
                      char *why, size_t room) {
  struct problem problem = {why, room};
  const struct bsg_json_value *value;
  struct bsg_out out;

  *request = (struct bsg_request){.device = -1};
  if (bsg_json_parse(d, text, length) != 0) {
    bsg_out_buffer(&out, why, room);
    bsg_out_format(&out, "it is not JSON: %s at byte %zu", d->why, d->at);
    bsg_out_string(&out);
    return -EINVAL;
  }
  if (d->values[0].type != BSG_JSON_OBJECT)
    return wrong(problem, d, &d->values[0], "it",
                 "an object is expected, {\"schema\": \"" SCHEMA "\", \"micro_batch\": N}");
  value = bsg_json_find(d, "micro_batch");
  if (value && value->type == BSG_JSON_NUMBER && value->is_integer && value->integer >= 1)
    request->micro_batch = value->integer;
  const struct bsg_json_value *schema = bsg_json_find(d, "schema");
  if (!schema || schema->type != BSG_JSON_STRING || strcmp(schema->string, SCHEMA) != 0)
    return wrong(problem, d, schema, "schema", "\"" SCHEMA "\" is allowed");
  const struct bsg_json_value *report = bsg_json_find(d, "report");
  if (given(report) && report->type != BSG_JSON_BOOL)
    return wrong(problem, d, report, "report", "true or false is allowed");
  request->report = given(report) && report->boolean;
  if (request->report && !given(value))
    return 0;
  if (request->micro_batch == 0)
    return wrong(problem, d, value, "micro_batch", "an integer of at least 1 is allowed");
  value = bsg_json_find(d, "device");
  if (given(value)) {
    if (value->type != BSG_JSON_NUMBER || !value->is_integer || value->integer < 0 || value->integer >= BSG_MAX_DEVICES)
      return wrong(problem, d, value, "device", "the number of a device is allowed, 0 to 63");
    request->device = (int)value->integer;
  }
  value = bsg_json_find(d, "boundary");
  if (given(value)) {
    if (value->type != BSG_JSON_STRING)
      return wrong(problem, d, value, "boundary", "the name of a boundary in double quotes is allowed");
    request->has_boundary = true;
    bsg_copy_text(request->boundary, sizeof(request->boundary), value->string);
  }
  return 0;
}
