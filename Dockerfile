# One image for all services: `make image`, or `docker build -t popwheel:0.1.0 .`; its arguments say which one it is.
# The fastest of those that all libraries serve (docs/internals/performance.md); this image of it is built with profile-guided optimisation.
ARG PYTHON=3.14

FROM python:${PYTHON}-slim AS build
ARG PYTHON
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /source
# Libraries first: they change only with pyproject.toml, so that a change of code makes one small layer anew.
COPY pyproject.toml requirements.lock ./
COPY tools/image_root.py tools/
RUN python tools/image_root.py /image --packages usr/local/lib/python${PYTHON}/site-packages --only-libraries
COPY README.md LICENSE ./
COPY services services
COPY tools/compile.py tools/
# What compiles the modules must know the libraries' types.
RUN pip install --no-cache-dir --constraint requirements.lock '.[grpcio,kubernetes,otel,redis,compile]' && python tools/compile.py build/compiled
RUN python tools/image_root.py /image --packages usr/local/lib/python${PYTHON}/site-packages --compiled build/compiled

FROM python:${PYTHON}-slim
# Where the source is, and of which commit: --build-arg REVISION=$(git rev-parse HEAD).
ARG SOURCE=https://github.com/popwheel/popwheel
ARG REVISION=
COPY --from=build /image/libraries /
COPY --from=build /image/code /
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /nonexistent popwheel \
 && install -d -o popwheel -g popwheel /var/lib/popwheel
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /var/lib/popwheel
VOLUME /var/lib/popwheel
LABEL org.opencontainers.image.title="Popwheel" \
      org.opencontainers.image.description="A message system that speaks RocketMQ 5's gRPC protocol" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.vendor="Popwheel" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.documentation="${SOURCE}/blob/main/README.md" \
      org.opencontainers.image.revision="${REVISION}"
EXPOSE 8080 8081 8082 8083 8090 8091
# Every verb is asked at its own port. Kubernetes has probes of its own.
HEALTHCHECK --interval=15s --timeout=5s --start-period=120s --retries=4 CMD ["python", "-P", "-m", "popwheel_cli.healthcheck"]
ENTRYPOINT ["popwheel"]
CMD ["standalone", "--data-dir", "/var/lib/popwheel", "--host", "0.0.0.0"]
