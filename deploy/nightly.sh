#!/bin/sh
# One night: fit a model, test it against the one in use, let `latest` point to it, write lists.
#
#   RATINGS=postgresql://shop@db/shop::ratings MODELS=/models sh nightly.sh
#
# It may run at any time and again: a second run waits for the first, and changes nothing if there
# is nothing new. The model in use stays until a better one is complete.
#
# RATINGS       what `recsys fit` takes, with times
# MODELS        directory of the versions, with the link `latest`  [models]
# EVENTS        log of `recsys serve --events`, read as more ratings
# FIT           options of the fit, such as --model als
# GATE          what the new model must not be, compared with the one in use  [ndcg@10 worse]
# KEEP          number of versions to keep  [7]
# LISTS         file or table for the lists of all users
# RECOMMEND     options of the lists, such as -n 20 --columns user=customer_id,item=sku
# WAIT          seconds to wait for another run  [3600]
#
# Exit code 0: done, or nothing to do. 1: the new model is worse. 75: try again in some minutes; also
# if the gate cannot be checked, as of a group that no test user is in.
set -eu
: "${RATINGS:?name the ratings}"
models=${MODELS:-models}
gate=${GATE:-ndcg@10 worse}
keep=${KEEP:-7}
worse=1
try_again=75

say() {
    echo "nightly: $*" >&2
}

later() {
    say "$* failed; try again later"
    exit "$try_again"
}

publish() {
    if [ -n "${LISTS:-}" ]; then
        # shellcheck disable=SC2086  # options are several words, here and below
        recsys recommend "$models/latest" --all --output "$LISTS" ${RECOMMEND:-} || later lists
    fi
}

# Return whether a source has ratings that the model in use does not know.
is_new() {
    [ -s "$1" ] || [ "$1" = "$RATINGS" ] || return 1
    said=$(recsys update "$models/latest" "$1" --dry-run 2>&1) || {
        echo "$said" >&2
        later "reading new ratings"
    }
    ! echo "$said" | grep -q "^0 new events"
}

# Add the events of the service to a model: add_events MODEL [OPTION]...
add_events() {
    [ -s "${EVENTS:-}" ] || return 0
    to=$1
    shift
    said=$(recsys update "$to" "$EVENTS" --force "$@" 2>&1) || {
        case $said in
            *"No rows are left"*) return 0 ;;
        esac
        echo "$said" >&2
        later "adding events"
    }
    echo "$said" >&2
}

mkdir -p "$models"
exec 9>"$models/.nightly.lock"
flock -w "${WAIT:-3600}" 9 || later "waiting for another run"
version=$models/$(date -u +%Y-%m-%dT%H%M%S)
while [ -e "$version" ]; do # of a run that has just ended
    sleep 1
    version=$models/$(date -u +%Y-%m-%dT%H%M%S)
done

if [ ! -e "$models/latest" ]; then
    # shellcheck disable=SC2086
    recsys fit "$RATINGS" --out "$version" ${FIT:-} || later "the first fit"
    add_events "$version"
    recsys versions promote "$version" || later promote
    publish
    exit
fi

if ! is_new "$RATINGS" && ! is_new "${EVENTS:-}"; then
    say "no new ratings; the model in use stays"
    publish
    exit
fi

# Both models are tested on what came after the ratings of the model in use.
cut=$(recsys versions list "$models" --format csv | awk -F, '$2 == "true" { print $6 }')
cut=${cut:-$(date -u -d yesterday +%F)}
# shellcheck disable=SC2086
recsys fit "$RATINGS" --until "$cut" --out "$version" ${FIT:-} || later fit
add_events "$version" --until "$cut"
if said=$(recsys compare "$models/latest" "$version" --test "$RATINGS" --since "$cut" \
    --fail-if "$gate" --output "$models/comparison.json" 2>&1); then
    echo "$said" >&2
    recsys update "$version" "$RATINGS" --force || later update
else
    echo "$said" >&2
    rm -r "$version"
    case $said in
        *'Failed by "'*)
            say "the new model is worse; the model in use stays"
            exit "$worse"
            ;;
        *"No rows are left"* | *"test ratings can be used"* | *"A test needs"* | *"no test of"*)
            say "no data to test a new model on; the model in use gets what is new"
            recsys update "$models/latest" "$RATINGS" --out "$version" || later update
            ;;
        *) later compare ;;
    esac
fi
add_events "$version"
recsys versions promote "$version" || later promote
publish

# The oldest versions go, but never the one in use.
recsys versions list "$models" --format csv | awk -F, 'NR > 1 && $2 != "true" { print $1 }' |
    head -n "-$((keep - 1))" |
    while read -r old; do
        rm -r "${models:?}/$old"
    done
