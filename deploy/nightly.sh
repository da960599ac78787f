#!/bin/sh
# One night: a model of the ratings until yesterday, a gate on yesterday's, the link to the new one.
#
#   RATINGS=postgresql://shop@db/shop::ratings MODELS=/models sh nightly.sh
#
# RATINGS is what `recsys fit` takes, with times. FIT has options of the fit, such as --model als;
# GATE is what the new model must not be, compared with the one in use; KEEP versions are kept.
set -eu
: "${RATINGS:?name the ratings}"
models=${MODELS:-models}
gate=${GATE:-ndcg@10 worse}
keep=${KEEP:-7}
yesterday=$(date -u -d yesterday +%F)
version=$models/$(date -u +%Y-%m-%dT%H%M%S)

if [ ! -e "$models/latest" ]; then
    # shellcheck disable=SC2086  # FIT is several words
    recsys fit "$RATINGS" --out "$version" ${FIT:-}
    exec recsys versions promote "$version"
fi

# shellcheck disable=SC2086
recsys fit "$RATINGS" --until "$yesterday" --out "$version" ${FIT:-}
if ! recsys compare "$models/latest" "$version" --test "$RATINGS" --since "$yesterday" \
    --fail-if "$gate" --output "$models/comparison.json"; then
    rm -r "$version"
    exit 1
fi
recsys update "$version" "$RATINGS" --since "$yesterday" --force
recsys versions promote "$version"

# The oldest versions go; the one in use is the newest.
recsys versions list "$models" --format csv | tail -n +2 | cut -d, -f1 | head -n "-$keep" |
    while read -r old; do
        rm -r "${models:?}/$old"
    done
