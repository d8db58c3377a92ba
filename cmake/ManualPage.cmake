# cmake -DPROGRAM=bsguard-options -DIN=... -DOUT=... -DPROJECT_VERSION=... -P: the manual page, its options from the table.
execute_process(COMMAND ${PROGRAM} --page OUTPUT_VARIABLE OPTIONS COMMAND_ERROR_IS_FATAL ANY)
configure_file(${IN} ${OUT} @ONLY)
