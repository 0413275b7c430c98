# Two stages: wheels are built with compilers at hand, the image that runs has none.
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md ./
COPY proto proto
COPY clients clients
COPY service service
RUN python -m venv /opt/sash && /opt/sash/bin/pip install --no-cache-dir --constraint constraints.txt .

FROM python:3.11-slim
# A volume that Docker makes takes over the owner of the directory that it covers.
RUN useradd --system --uid 10001 --home-dir /var/lib/sash --create-home sash \
    && install -d -o sash -g sash -m 0700 /data
COPY --from=build /opt/sash /opt/sash
ENV PATH=/opt/sash/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    SASH_HOST=0.0.0.0 \
    SASH_DATA=/data
USER sash
WORKDIR /var/lib/sash
VOLUME /data
EXPOSE 7070 7071
# It listens once it has recovered what /data has.
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:7071/readyz', timeout=2)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["sash"]
CMD ["serve"]
