{{- define "popwheel.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}{{- end -}}
{{- end -}}
{{- end -}}

{{/* Labels that select: (dict "root" $ "component" "broker"). */}}
{{- define "popwheel.selector" -}}
app.kubernetes.io/name: popwheel
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "popwheel.labels" -}}
{{ include "popwheel.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels of pods: without the chart's version, of which no pod needs to be made anew. */}}
{{- define "popwheel.podLabels" -}}
{{ include "popwheel.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
{{- with merge dict (.values.podLabels | default dict) .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "popwheel.metadata" -}}
labels:
  {{- include "popwheel.labels" . | nindent 2 }}
  {{- with .group }}
  popwheel.io/group: {{ . | quote }}
  {{- end }}
{{- with .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The name of the resource that declares a topic or group: its own, if Kubernetes lets it. */}}
{{- define "popwheel.declared" -}}
{{- if regexMatch "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$" . -}}
{{- . -}}
{{- else -}}
{{- printf "%s-%s" (regexReplaceAll "[^a-z0-9]+" (lower .) "-" | trimAll "-" | default "x") (sha256sum . | trunc 10) -}}
{{- end -}}
{{- end -}}

{{- define "popwheel.image" -}}
{{- with .Values.image -}}
{{- include "popwheel.fromRegistry" (list $ (ternary (printf "%s@%s" .repository .digest) (printf "%s:%s" .repository (default $.Chart.AppVersion .tag)) (ne .digest ""))) -}}
{{- end -}}
{{- end -}}

{{/* An image by its name, in the registry of all images if there is one: (list $ "valkey/valkey:8.1"). */}}
{{- define "popwheel.fromRegistry" -}}
{{- $registry := (index . 0).Values.global.imageRegistry -}}
{{- $image := index . 1 -}}
{{- if $registry -}}
{{- $image = printf "%s/%s" (trimSuffix "/" $registry) (regexReplaceAll "^(localhost|[^/]*[.:][^/]*)/" $image "") -}}
{{- end -}}
{{- $image -}}
{{- end -}}

{{/* Secrets with which images are pulled. */}}
{{- define "popwheel.pullSecrets" -}}
{{- $secrets := .Values.image.pullSecrets -}}
{{- range .Values.global.imagePullSecrets -}}
{{- $secrets = append $secrets (ternary (dict "name" .) . (kindIs "string" .)) -}}
{{- end -}}
{{- with uniq $secrets -}}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end -}}

{{/* Names under which the admin API is asked from outside. */}}
{{- define "popwheel.outsideNames" -}}
{{- with .Values.admin -}}
{{- $names := list -}}
{{- if .ingress.enabled }}{{ $names = concat $names .ingress.hosts }}{{ end -}}
{{- if .httpRoute.enabled }}{{ $names = concat $names .httpRoute.hostnames }}{{ end -}}
{{- toJson (uniq $names) -}}
{{- end -}}
{{- end -}}

{{- define "popwheel.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (printf "%s-controller" (include "popwheel.fullname" .)) .Values.serviceAccount.name -}}
{{- else -}}
{{- .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* What all bears that belongs to the cluster's data: volumes, custom resources, the key of the handles. */}}
{{- define "popwheel.cluster" -}}
{{- include "popwheel.setting" (list . "controller.cluster_name" "popwheel") -}}
{{- end -}}

{{/* host:port of every controller, with commas between. */}}
{{- define "popwheel.controllers" -}}
{{- $name := printf "%s-controller" (include "popwheel.fullname" .) -}}
{{- $addresses := list -}}
{{- range $i := until (int .Values.controller.replicas) -}}
{{- $addresses = append $addresses (printf "%s-%d.%s.%s.svc.%s:8083" $name $i $name $.Release.Namespace $.Values.clusterDomain) -}}
{{- end -}}
{{- join "," $addresses -}}
{{- end -}}

{{/* The admin API of each controller, for `popwheel admin --server`: one that does not lead is passed by. */}}
{{- define "popwheel.adminServers" -}}
{{- $servers := list -}}
{{- range splitList "," (include "popwheel.controllers" .) -}}
{{- $servers = append $servers (printf "http://%s:8080" (trimSuffix ":8083" .)) -}}
{{- end -}}
{{- join "," $servers -}}
{{- end -}}

{{- define "popwheel.proxyAddress" -}}
{{ include "popwheel.fullname" . }}-proxy.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}:{{ .Values.proxy.service.port }}
{{- end -}}

{{/* What a container runs: (dict "root" $ "args" list). */}}
{{- define "popwheel.process" -}}
{{- if .root.Values.diagnosticMode -}}
command: [sh, -c, "trap exit TERM; sleep infinity & wait"]
{{- else -}}
command: [popwheel]
args: {{ toJson .args }}
{{- end -}}
{{- end -}}

{{- define "popwheel.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "popwheel.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* What every pod of a component has: (dict "root" $ "component" "broker" "values" .Values.broker "spread" labels). */}}
{{- define "popwheel.podPlacement" -}}
enableServiceLinks: false
{{- with include "popwheel.pullSecrets" .root }}
{{ . }}
{{- end }}
securityContext:
  {{- include "popwheel.over" (list (include "popwheel.podSecurity" .) .values.podSecurityContext) | nindent 2 }}
topologySpreadConstraints:
  {{- if .values.topologySpreadConstraints }}
  {{- toYaml .values.topologySpreadConstraints | nindent 2 }}
  {{- else }}
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- $.spread | nindent 8 }}
  {{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
affinity:
  {{- if .values.affinity }}
  {{- toYaml .values.affinity | nindent 2 }}
  {{- else }}
  {{- /* Not a second constraint above: nodes without a zone would be left out of the first one, too. */}}
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 50
        podAffinityTerm:
          topologyKey: topology.kubernetes.io/zone
          labelSelector:
            matchLabels:
              {{- $.spread | nindent 14 }}
  {{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.dnsPolicy }}
dnsPolicy: {{ . }}
{{- end }}
{{- with .values.dnsConfig }}
dnsConfig:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.hostAliases }}
hostAliases:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.initContainers }}
initContainers:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* How many pods a drain may take at a time: of .Values.proxy.podDisruptionBudget. */}}
{{- define "popwheel.disruption" -}}
{{- if ne (toString .minAvailable) "" -}}
minAvailable: {{ .minAvailable }}
{{- else -}}
maxUnavailable: {{ .maxUnavailable }}
{{- end -}}
{{- end -}}

{{/* One mapping laid over another, as text: (list "text of a mapping" mapping). */}}
{{- define "popwheel.over" -}}
{{- if index . 1 -}}
{{- $made := index . 0 | fromYaml -}}
{{- include "popwheel.lay" (list $made (index . 1)) -}}
{{- toYaml $made -}}
{{- else -}}
{{- index . 0 -}}
{{- end -}}
{{- end -}}

{{/* Lays a mapping over another one, which it changes: mappings key by key, lists of things with names (containers, volumes,
variables, ports; mounts by their path) thing by thing, all else as a whole; null takes a key away. */}}
{{- define "popwheel.lay" -}}
{{- $under := index . 0 -}}
{{- range $key, $value := index . 1 -}}
  {{- $below := get $under $key -}}
  {{- $by := ternary "mountPath" "name" (eq $key "volumeMounts") -}}
  {{- if kindIs "invalid" $value -}}
    {{- $_ := unset $under $key -}}
  {{- else if and (kindIs "map" $value) (kindIs "map" $below) -}}
    {{- include "popwheel.lay" (list $below $value) -}}
  {{- else if and (include "popwheel.named" (list $by $value)) (include "popwheel.named" (list $by $below)) -}}
    {{- $both := $below -}}
    {{- range $thing := $value -}}
      {{- $known := false -}}
      {{- range $below -}}
        {{- if eq (get . $by) (get $thing $by) }}{{ $known = true }}{{ include "popwheel.lay" (list . $thing) }}{{ end -}}
      {{- end -}}
      {{- if not $known }}{{ $both = append $both $thing }}{{ end -}}
    {{- end -}}
    {{- $_ := set $under $key $both -}}
  {{- else -}}
    {{- $_ := set $under $key $value -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* Whether a list is of things that bear some key: (list "name" list). */}}
{{- define "popwheel.named" -}}
{{- $by := index . 0 -}}
{{- $named := kindIs "slice" (index . 1) -}}
{{- if $named -}}
  {{- range index . 1 -}}
    {{- if not (and (kindIs "map" .) (hasKey . $by)) }}{{ $named = false }}{{ end -}}
  {{- end -}}
{{- end -}}
{{- if $named }}yes{{ end -}}
{{- end -}}

{{/* Objects, each with what values lay over those of its kind: (list "text of the objects" .Values.proxy.overrides). */}}
{{- define "popwheel.overridden" -}}
{{- $overrides := index . 1 -}}
{{- range $index, $text := splitList "\n---\n" (index . 0) -}}
{{- $kind := regexFind "(?m)^kind: [A-Za-z]+$" $text | trimPrefix "kind: " -}}
{{- if $index }}
---
{{ end -}}
{{- include "popwheel.over" (list (trim $text) (get $overrides $kind | default dict)) -}}
{{- end }}
{{ end -}}

{{/* What a service's container has besides its own: (dict "values" .Values.broker). */}}
{{- define "popwheel.containerExtras" -}}
resources:
  {{- toYaml .values.resources | nindent 2 }}
securityContext:
  {{- include "popwheel.over" (list (include "popwheel.containerSecurity" .) .values.securityContext) | nindent 2 }}
{{- with .values.envFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "popwheel.podAnnotations" -}}
checksum/config: {{ include (print .root.Template.BasePath "/config.yaml") .root | sha256sum }}
{{- with .values.podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The Secret of the certificate that services show one another. */}}
{{- define "popwheel.internalSecret" -}}
{{- .Values.tls.internal.existingSecret | default (printf "%s-internal-tls" (include "popwheel.fullname" .)) -}}
{{- end -}}

{{/* Whether the chart makes that certificate itself. */}}
{{- define "popwheel.makesCertificates" -}}
{{- with .Values.tls.internal -}}
{{- if and .enabled (not .existingSecret) (not .certManager.enabled) -}}yes{{- end -}}
{{- end -}}
{{- end -}}

{{/* The names by which services reach brokers and controllers; * is a pod. Nothing of Popwheel itself reaches a proxy. */}}
{{- define "popwheel.internalNames" -}}
{{- $domain := printf "%s.svc.%s" .Release.Namespace .Values.clusterDomain -}}
{{- range list "broker" "controller" }}
- {{ printf "*.%s-%s.%s" (include "popwheel.fullname" $) . $domain | quote }}
{{- end -}}
{{- end -}}

{{/* What a service needs of that certificate: environment, mount and volume. New contents reach the files by themselves. */}}
{{- define "popwheel.internalEnv" -}}
{{- with .Values.tls.internal }}
{{- if .enabled }}
- {name: POPWHEEL_TLS__CERTIFICATE_FILE, value: /etc/popwheel-internal-tls/tls.crt}
- {name: POPWHEEL_TLS__KEY_FILE, value: /etc/popwheel-internal-tls/tls.key}
- {name: POPWHEEL_TLS__AUTHORITY_FILE, value: /etc/popwheel-internal-tls/ca.crt}
- {name: POPWHEEL_TLS__MODE, value: {{ .mode }}}
{{- end }}
{{- end }}
{{- end -}}

{{- define "popwheel.internalMount" -}}
{{- if .Values.tls.internal.enabled }}
- {name: internal-tls, mountPath: /etc/popwheel-internal-tls, readOnly: true}
{{- end }}
{{- end -}}

{{- define "popwheel.internalVolume" -}}
{{- if .Values.tls.internal.enabled }}
- name: internal-tls
  secret:
    secretName: {{ include "popwheel.internalSecret" . }}
    items: [{key: tls.crt, path: tls.crt}, {key: tls.key, path: tls.key}, {key: ca.crt, path: ca.crt}]
{{- end }}
{{- end -}}
