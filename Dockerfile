# Two stages, so that the image that runs has neither the sources nor a compiler and a pip of its own. All dependencies
# come as wheels; of Sash the engine is compiled.
FROM python:3.11-slim AS build
# `--build-arg EXTRAS=server,otel` adds what sends traces.
ARG EXTRAS=server
WORKDIR /src
COPY pyproject.toml constraints.txt README.md ./
COPY proto proto
COPY clients clients
COPY service service
COPY deploy/slim.py deploy/build_hook.py deploy/compile_engine.py deploy/
COPY deploy/page deploy/page
RUN command -v gcc >/dev/null \
    || { apt-get update -qq && apt-get install -qq --no-install-recommends gcc libc6-dev >/dev/null; }
RUN export COMPILE_SASH=1 \
    && python -m venv --without-pip /opt/sash \
    && pip --python /opt/sash/bin/python install --no-cache-dir --constraint constraints.txt ".[$EXTRAS]" \
    && python deploy/slim.py /opt/sash

FROM python:3.11-slim
# A volume that Docker makes takes over the owner of the directory that it covers; a directory of the host that is
# mounted there must belong to 10001.
RUN useradd --system --uid 10001 --home-dir /var/lib/sash --create-home sash \
    && install -d -o sash -g sash -m 0700 /data
COPY --from=build /opt/sash /opt/sash
# It listens on all addresses of the container, so it does not start until something says who may call: SASH_TOKENS, or
# SASH_TLS_CLIENT_CA; or SASH_INSECURE=1, where the network of the container is closed.
ENV PATH=/opt/sash/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    SASH_HOST=0.0.0.0 \
    SASH_REST_PORT=7071 \
    SASH_DATA=/data
USER sash
WORKDIR /var/lib/sash
VOLUME /data
EXPOSE 7070 7071
# Alive, and not ready: Docker would else restart a service whose disk is full. It listens once it has recovered what
# /data has.
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s CMD ["python", "-m", "sash.alive"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["sash"]
CMD ["serve"]
