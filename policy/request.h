/*
 * request.h - request.json, an operator's wish, as text: what does it ask for, and if it cannot be obeyed, why not?
 * Pure.
 */
#ifndef BSG_POLICY_REQUEST_H
#define BSG_POLICY_REQUEST_H

#include "policy/json_read.h"
#include "policy/records.h"

struct bsg_request {
  int64_t micro_batch; /* samples; 0: none could be read */
  int device;          /* -1: any */
  bool report;         /* write one now */
  bool has_boundary;
  char boundary[BSG_BOUNDARY_ROOM];
};

/* 0, or -EINVAL with the reason: the field, its value and what is allowed. `document` is scratch. */
int bsg_request_parse(struct bsg_json_document *document, const char *text, size_t length, struct bsg_request *request,
                      char *why, size_t room);

#endif
