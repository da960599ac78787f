#!/bin/sh
# The first start of the database: tables, some sample ratings, and the role of the nightly job.
#
# The role may read the ratings and change the lists, and nothing else. Replace the sample by the
# ratings of your shop: DELETE FROM ratings, then INSERT or \copy.
set -eu
psql --no-psqlrc --quiet --set=ON_ERROR_STOP=1 --username="$POSTGRES_USER" --dbname="$POSTGRES_DB" \
    --set=password="${RECOMMENDER_PASSWORD:?set it in the file .env}" --set=database="$POSTGRES_DB" <<'SQL'
BEGIN;
CREATE TABLE ratings (
    user_id bigint NOT NULL,
    item_id bigint NOT NULL,
    rating real NOT NULL,
    time timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON ratings (time);
CREATE TABLE recommendations (
    customer_id bigint,
    rank integer,
    item_id bigint NOT NULL,
    score real NOT NULL,
    version text NOT NULL,
    PRIMARY KEY (customer_id, rank)
);

-- 200 users like items of their own kind; the ratings are of the last 30 days.
INSERT INTO ratings
SELECT u, i, CASE WHEN (u + i) % 3 = 0 THEN 4 ELSE 2 END + abs(hashint8(u * 10007 + i)) % 2,
    date_trunc('second', now()) - abs(hashint8(u * 10037 + i)) % 2592000 * interval '1 second'
FROM generate_series(1, 200) AS u, generate_series(1001, 1100) AS i
WHERE abs(hashint8(u * 10009 + i)) % 10 < 3;

CREATE ROLE recommender LOGIN PASSWORD :'password' NOSUPERUSER NOCREATEDB NOCREATEROLE
    CONNECTION LIMIT 5;
REVOKE ALL ON DATABASE :"database" FROM PUBLIC;
GRANT CONNECT, TEMPORARY ON DATABASE :"database" TO recommender;
REVOKE CREATE ON SCHEMA public FROM PUBLIC;
GRANT SELECT ON ratings TO recommender;
GRANT SELECT, INSERT, DELETE ON recommendations TO recommender;
COMMIT;
SQL
