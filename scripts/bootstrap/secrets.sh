# shellcheck shell=bash
# The secrets of a cluster: the one that nodes share, and a token for each role.
#
# Invariants: a secret that was made is never made again; a file of secrets has mode 0600; secrets go from
# /dev/urandom to files and never onto a command line.

readonly ROLES=(admin operator viewer executor)

random_text() {
  head -c 32 /dev/urandom | base64 -w 0 | tr '+/' '-_' | tr -d '='
}

# Makes what is missing below a folder: cluster.secret, ROLE.token, and tokens, which has their digests.
make_secrets() { # folder has_data
  local folder=$1 has_data=$2 role digest
  mkdir -p -- "$folder"
  chmod 0700 -- "$folder"
  if [[ ! -s $folder/cluster.secret ]]; then
    if $has_data; then
      die "$folder/cluster.secret is gone, but the cluster has run with it. Bring it back from a copy. If there is none: stop all nodes, write a new one (32 random bytes as text, mode 0600) to every node, start them"
    fi
    { random_text && say; } | write_whole "$folder/cluster.secret"
  fi
  # The file of digests is written last: where it is, all tokens have been made, and one whose file was
  # taken away since is not replaced.
  if [[ ! -s $folder/tokens ]]; then
    for role in "${ROLES[@]}"; do
      if [[ ! -s $folder/$role.token ]]; then
        { printf 'tnr_' && random_text && say; } | write_whole "$folder/$role.token"
      fi
    done
    {
      say '# Tokens of the cluster, one a line: name, role, SHA-256 of the token in hex.'
      say '# A token ends when its line is taken out and the nodes are restarted.'
      for role in "${ROLES[@]}"; do
        digest=$(tr -d '\n' <"$folder/$role.token" | sha256sum)
        say "$role $role ${digest%% *}"
      done
    } | write_whole "$folder/tokens"
  fi
  chmod 0600 -- "$folder/cluster.secret" "$folder/tokens"
  for role in "${ROLES[@]}"; do
    if [[ -f $folder/$role.token ]]; then
      chmod 0600 -- "$folder/$role.token"
    else
      warn "$folder/$role.token is not there. It is not made again; for a new one: tenure token generate --name $role --role $role, then add its line to $folder/tokens"
    fi
  done
}
