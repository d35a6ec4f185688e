#!/bin/sh
# Makes the fleet, and the tokens that routers, agents and the load generators need, each in a file of the shared directory $1.
# Running it again changes nothing that is still good. It acts as the bootstrap admin, whose token comes by HEADRACE_TOKEN.
set -eu
directory=$1
here=$(dirname "$0")
umask 077

# keep KIND NAME COMMAND...: have COMMAND make the secret of resource KIND/NAME unless its file and the resource are both there.
keep() {
    kind=$1 name=$2
    shift 2
    if [ -s "$directory/$name" ] && headrace get "$kind" "$name" >/dev/null 2>&1; then
        return
    fi
    # A resource whose secret we do not have is of no use: it is made anew.
    if ! "$@" >"$directory/.$name"; then
        headrace delete "$kind" "$name"
        "$@" >"$directory/.$name"
    fi
    mv "$directory/.$name" "$directory/$name"
}

headrace apply -f "$here/fleet.yaml"
for region in eu-west us-east ap-northeast; do
    keep admin-token "router-$region" headrace token create "router-$region" --role router --region "$region"
    for zone in a b; do
        keep join-token "join-$region-$zone" headrace token create "join-$region-$zone" --role join --zone "$region-$zone" --uses 1000 --expires 365d
    done
done
keep key load headrace key create load --tenant acme
