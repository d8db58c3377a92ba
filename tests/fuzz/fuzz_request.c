/*
 * fuzz_request.c - request.json, which anybody may write: it is refused with a reason, or asks for something that
 * policy can do. The bytes end where the reader is told, not at a NUL.
 */
#include <errno.h>

#include "fuzz.h"
#include "policy/request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static struct bsg_json_document document;
  struct bsg_request request;
  char why[160] = "";
  char *text = malloc(size ? size : 1); /* exactly as long, so that reading past the end is seen */

  ENSURE(text);
  memcpy(text, data, size);
  int result = bsg_request_parse(&document, text, size, &request, why, sizeof(why));
  ENSURE(result == 0 || result == -EINVAL);
  if (result == 0) {
    ENSURE(request.micro_batch >= 1 || (request.report && request.micro_batch == 0));
    ENSURE(request.device >= -1);
    ENSURE(memchr(request.boundary, '\0', sizeof(request.boundary)));
  } else {
    ENSURE(why[0] != '\0' && memchr(why, '\0', sizeof(why)));
    ENSURE(!strpbrk(why, "\n\r\033")); /* it goes to a terminal */
  }
  free(text);
  return 0;
}
