/*
 * fuzz_options.c - the values of BSGUARD_* variables: understood, or refused; never half of either. The parser is not
 * visible outside its file, so that file is made a part of this one.
 */
#include "shim/options.c"

#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static struct value value, again;
  struct bytes bytes = {data, size};
  const struct option *option = &options[take(&bytes, 1) % BSG_OPTION_COUNT];
  char *text = strndup((const char *)bytes.data, bytes.left);

  ENSURE(text);
  if (parse(option, text, &value) == 0) {
    ENSURE(memchr(value.text, '\0', sizeof(value.text)));
    if (option->type == SIZE)
      ENSURE(value.number >= 0);
    /* What is told to others can be said to us again. */
    ENSURE(parse(option, value.text, &again) == 0);
    ENSURE(again.number == value.number && strcmp(again.text, value.text) == 0);
  }
  free(text);
  return 0;
}
