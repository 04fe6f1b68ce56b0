#!/bin/sh
# Installs what `make bench-peers` compares headrace with, by package name: Debian's packages (as root; their services
# are not started), jars of Apache Kafka, its MirrorMaker, Apache Fluss, Apache Cassandra and Spark's Kafka source from
# Maven Central, NATS from the Go module proxy, and Python clients into an environment of their own.
#
#   bench/peers/install.sh                                                              everything
#   bench/peers/install.sh debian kafka mirror_maker fluss cassandra spark nats pip c   the same, or some of it
#
# Jars, the environment and what is compiled go to .peers/ beside the Makefile; remove that folder to be rid of them.
# What is not installed is skipped by the bench, with the reason.
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}

from_debian() {
    # A server that a package starts would take part in the measurements: tell dpkg to start none.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' > "$policy"
        chmod +x "$policy"
        trap 'rm -f "$policy"' EXIT
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        rabbitmq-server redis-server activemq default-jre-headless maven gcc libc6-dev librdkafka-dev
}

kafka_jars() {
    # The last 3.x and the newest 4.x, which needs Java 17 and has no ZooKeeper.
    for version in 3.9.1 4.4.0; do
        directory=.peers/kafka-${version%%.*}
        rm -rf "$directory"
        mvn -q -f bench/peers/kafka/pom.xml dependency:copy-dependencies -Dkafka.version=$version \
            -DoutputDirectory="$PWD/$directory"
    done
}

mirror_maker_jars() {
    rm -rf .peers/mirror-maker
    mvn -q -f bench/peers/mirror_maker/pom.xml dependency:copy-dependencies \
        -DoutputDirectory="$PWD/.peers/mirror-maker"
}

fluss_jars() {
    rm -rf .peers/fluss
    mvn -q -f bench/peers/fluss/pom.xml dependency:copy-dependencies -DoutputDirectory="$PWD/.peers/fluss"
}

cassandra_jars() {
    rm -rf .peers/cassandra
    mvn -q -f bench/peers/cassandra/pom.xml dependency:copy-dependencies -DoutputDirectory="$PWD/.peers/cassandra"
}

spark_source() {
    # Only what Spark itself does not bring.
    rm -rf .peers/spark-kafka
    mvn -q -f bench/peers/spark/pom.xml dependency:copy-dependencies -DoutputDirectory="$PWD/.peers/spark-kafka" \
        -DincludeArtifactIds=spark-sql-kafka-0-10_2.13,spark-token-provider-kafka-0-10_2.13,kafka-clients,commons-pool2
}

nats_server() {
    # Debian's is years behind; where there is no Go, NATS is not measured.
    if ! command -v go > /dev/null; then
        echo "$0: NATS is left out: go is not installed" >&2
        return
    fi
    modules=$(mktemp -d)
    GOMODCACHE=$modules GOFLAGS=-modcacherw GOBIN="$PWD/.peers" go install github.com/nats-io/nats-server/v2@v2.15.2
    rm -rf "$modules"
}

python_clients() {
    "$python" -m venv .peers/venv
    .peers/venv/bin/pip install -q -r bench/peers/requirements.txt
}

c_client() {
    # Against the library that confluent-kafka brings, so that both are the same librdkafka; Debian's has the header.
    libraries=$(echo "$PWD"/.peers/venv/lib/python3*/site-packages/confluent_kafka.libs)
    gcc -O2 -Wall -Wextra -o .peers/librdkafka bench/peers/clients/librdkafka.c \
        "$libraries"/librdkafka-*.so.1 -Wl,-rpath,"$libraries" -lpthread
}

for part in ${*:-debian kafka mirror_maker fluss cassandra spark nats pip c}; do
    case $part in
        debian) from_debian ;;
        kafka) kafka_jars ;;
        mirror_maker) mirror_maker_jars ;;
        fluss) fluss_jars ;;
        cassandra) cassandra_jars ;;
        spark) spark_source ;;
        nats) nats_server ;;
        pip) python_clients ;;
        c) c_client ;;
        *) echo "$0: no such part: $part (debian, kafka, mirror_maker, fluss, cassandra, spark, nats, pip, c)" >&2; exit 2 ;;
    esac
done
