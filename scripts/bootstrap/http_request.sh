#!/usr/bin/env bash
# One HTTP request to 127.0.0.1: http_request.sh PORT METHOD PATH TOKEN_FILE BODY
# Prints the status on the first line, then the body. A program of its own, so that it can be given a time
# limit; without curl, so that a token never stands on a command line.
set -euo pipefail
LC_ALL=C
port=$1 method=$2 path=$3 token_file=$4 body=$5

exec 3<>"/dev/tcp/127.0.0.1/$port"
{
  printf '%s %s HTTP/1.1\r\nHost: 127.0.0.1:%s\r\nConnection: close\r\n' "$method" "$path" "$port"
  if [[ -n $token_file ]]; then printf 'Authorization: Bearer %s\r\n' "$(<"$token_file")"; fi
  if [[ -n $body ]]; then printf 'Content-Type: application/json\r\nContent-Length: %d\r\n' "${#body}"; fi
  printf '\r\n%s' "$body"
} >&3

IFS=' ' read -r _ status _ <&3
printf '%s\n' "$status"
while IFS= read -r line <&3 && [[ -n ${line%$'\r'} ]]; do :; done
cat <&3
