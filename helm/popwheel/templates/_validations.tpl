{{/* A setting of `config`, or what the services take without it: (list $ "controller.replication.lease_ms" 2000). */}}
{{- define "popwheel.setting" -}}
{{- $at := (index . 0).Values.config -}}
{{- $default := index . 2 -}}
{{- range splitList "." (index . 1) -}}
  {{- if kindIs "map" $at }}{{ $at = get $at . }}{{ end -}}
{{- end -}}
{{- toString $at | default (toString $default) -}}
{{- end -}}

{{/* Everything that is wrong with the values and that no schema can say, as sentences. */}}
{{- define "popwheel.validations" -}}
{{- $values := .Values -}}
{{- $wrong := list -}}
{{- range $key, $instead := .Files.Get "files/set-by-chart.yaml" | fromYaml -}}
  {{- $at := $values.config -}}
  {{- $given := true -}}
  {{- range splitList "." $key -}}
    {{- if and $given (kindIs "map" $at) (hasKey $at .) }}{{ $at = get $at . }}{{ else }}{{ $given = false }}{{ end -}}
  {{- end -}}
  {{- if $given }}{{ $wrong = append $wrong (printf "config.%s is the chart's to set: %s" $key $instead) }}{{ end -}}
{{- end -}}

{{- with .Values.image -}}
  {{- if eq .tag "latest" -}}
    {{- $wrong = append $wrong "image.tag is `latest`, so that pods of one release could run different code: name a version, or an image.digest" -}}
  {{- end -}}
{{- end -}}

{{- with .Values.proxy -}}
  {{- if and .autoscaling.enabled (gt (int .autoscaling.minReplicas) (int .autoscaling.maxReplicas)) -}}
    {{- $wrong = append $wrong (printf "proxy.autoscaling.minReplicas (%d) is above proxy.autoscaling.maxReplicas (%d)" (int .autoscaling.minReplicas) (int .autoscaling.maxReplicas)) -}}
  {{- end -}}
  {{- if and .autoscaling.enabled (not (dig "requests" "cpu" "" .resources)) -}}
    {{- $wrong = append $wrong "proxy.autoscaling goes by the share of the CPU that was asked for: say proxy.resources.requests.cpu" -}}
  {{- end -}}
  {{- if and .service.nodePort (eq .service.type "ClusterIP") -}}
    {{- $wrong = append $wrong (printf "proxy.service.nodePort is %d, but a Service of type ClusterIP has none: say proxy.service.type=NodePort" (int .service.nodePort)) -}}
  {{- end -}}
  {{- if and (or .service.loadBalancerIP .service.loadBalancerSourceRanges) (ne .service.type "LoadBalancer") -}}
    {{- $wrong = append $wrong (printf "proxy.service.loadBalancerIP and loadBalancerSourceRanges need proxy.service.type=LoadBalancer, and it is %s" .service.type) -}}
  {{- end -}}
  {{- if and .service.loadBalancerClass (ne .service.type "LoadBalancer") -}}
    {{- $wrong = append $wrong (printf "proxy.service.loadBalancerClass needs proxy.service.type=LoadBalancer, and it is %s" .service.type) -}}
  {{- end -}}
  {{- if and .service.externalTrafficPolicy (eq .service.type "ClusterIP") -}}
    {{- $wrong = append $wrong "proxy.service.externalTrafficPolicy is of clients outside, and none come to a Service of type ClusterIP: say proxy.service.type=LoadBalancer or NodePort" -}}
  {{- end -}}
  {{- if lt (int .terminationGracePeriodSeconds) 10 -}}
    {{- $wrong = append $wrong (printf "proxy.terminationGracePeriodSeconds is %d; a proxy that ends serves for 5 s more and then ends its calls: it must be at least 10" (int .terminationGracePeriodSeconds)) -}}
  {{- end -}}
  {{- if and .tls.existingSecret .tls.certManager.enabled -}}
    {{- $wrong = append $wrong "proxy.tls.existingSecret and proxy.tls.certManager.enabled both name a certificate: choose one" -}}
  {{- end -}}
  {{- if and .tls.certManager.enabled (not (get .tls.certManager.issuerRef "name")) -}}
    {{- $wrong = append $wrong "proxy.tls.certManager needs the issuer: say proxy.tls.certManager.issuerRef.name (and kind)" -}}
  {{- end -}}
{{- end -}}

{{- if ne (len .Values.broker.groups) (len (uniq .Values.broker.groups)) -}}
  {{- $wrong = append $wrong (printf "broker.groups names a group twice: %s" (join ", " .Values.broker.groups)) -}}
{{- end -}}
{{- /* A group has a StatefulSet, a PodDisruptionBudget, and a resource of its name. */ -}}
{{- $taken := dict (printf "%s-controller" (include "popwheel.fullname" .)) "the controllers' StatefulSet" (printf "%s-proxy" (include "popwheel.fullname" .)) "the proxies' PodDisruptionBudget" -}}
{{- range $group := .Values.broker.groups -}}
  {{- with get $taken $group -}}
    {{- $wrong = append $wrong (printf "broker.groups: %s is the name of %s; choose another" $group .) -}}
  {{- end -}}
{{- end -}}
{{- $handOver := int (include "popwheel.setting" (list $ "controller.replication.hand_over_ms" 3000)) -}}
{{- $grace := int .Values.broker.terminationGracePeriodSeconds -}}
{{- $least := int (add 20 (max 5 (div (add $handOver 999) 1000))) -}}
{{- if lt $grace $least -}}
  {{- $wrong = append $wrong (printf "broker.terminationGracePeriodSeconds is %d; a master hands over for up to %d ms (config.controller.replication.hand_over_ms) and then saves: it must be at least %d" $grace $handOver $least) -}}
{{- end -}}
{{- range $service := list "proxy" "broker" "controller" -}}
  {{- with get $.Values $service -}}
    {{- if and .podDisruptionBudget.enabled (eq (toString .podDisruptionBudget.minAvailable) "") (eq (toString .podDisruptionBudget.maxUnavailable) "") -}}
      {{- $wrong = append $wrong (printf "%s.podDisruptionBudget is enabled and says neither maxUnavailable nor minAvailable: say one" $service) -}}
    {{- end -}}
    {{- range $kind, $over := .overrides -}}
      {{- range $key := list "apiVersion" "kind" -}}
        {{- if hasKey $over $key -}}
          {{- $wrong = append $wrong (printf "%s.overrides.%s.%s would make other objects of these: take it out" $service $kind $key) -}}
        {{- end -}}
      {{- end -}}
      {{- if hasKey ($over.metadata | default dict) "name" -}}
        {{- $wrong = append $wrong (printf "%s.overrides.%s.metadata.name: the chart knows its objects by their names; take it out" $service $kind) -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- $applications := list -}}
{{- range .Values.spark.applications -}}
  {{- if has .name $applications }}{{ $wrong = append $wrong (printf "spark.applications names %s twice" .name) }}{{ end -}}
  {{- $applications = append $applications .name -}}
{{- end -}}
{{- $streams := list -}}
{{- range .Values.spark.streams -}}
  {{- if has .name $streams }}{{ $wrong = append $wrong (printf "spark.streams names %s twice" .name) }}{{ end -}}
  {{- $streams = append $streams .name -}}
  {{- $places := compact (list .checkpoint.url .checkpoint.size .checkpoint.existingClaim) -}}
  {{- if ne (len $places) 1 -}}
    {{- $wrong = append $wrong (printf "spark.streams %s: say exactly one of checkpoint.url, size and existingClaim; without its checkpoint a stream begins anew at each start" .name) -}}
  {{- else if and (hasPrefix "k8s://" (.master | default "")) (not .checkpoint.url) -}}
    {{- $wrong = append $wrong (printf "spark.streams %s: executors do not see a volume of the driver's pod; with a master k8s:// give checkpoint.url" .name) -}}
  {{- end -}}
{{- end -}}
{{- $inSync := int (include "popwheel.setting" (list $ "broker.replication.min_in_sync_replicas" 1)) -}}
{{- if gt $inSync (int .Values.broker.replicas) -}}
  {{- $wrong = append $wrong (printf "config.broker.replication.min_in_sync_replicas is %d, but a group has broker.replicas=%d: every send would be refused" $inSync (int .Values.broker.replicas)) -}}
{{- end -}}
{{- $detection := int (include "popwheel.setting" (list $ "controller.replication.detection_ms" 3000)) -}}
{{- if lt $detection 2000 -}}
  {{- $wrong = append $wrong (printf "config.controller.replication.detection_ms is %d; it must be at least 2000, which is four heartbeats of a replica, or replicas that are only slow are taken for dead" $detection) -}}
{{- end -}}
{{- $lease := int (include "popwheel.setting" (list $ "controller.replication.lease_ms" 2000)) -}}
{{- if lt $lease 1000 -}}
  {{- $wrong = append $wrong (printf "config.controller.replication.lease_ms is %d; with the lease at the API server it must be at least 1000" $lease) -}}
{{- end -}}

{{- $cluster := include "popwheel.cluster" . -}}
{{- if not (regexMatch "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$" $cluster) -}}
  {{- $wrong = append $wrong (printf "config.controller.cluster_name is %s; objects of Kubernetes bear it, so it must be of small letters, digits and hyphens, 63 at the most" $cluster) -}}
{{- end -}}

{{- with .Values.tls.internal -}}
  {{- if and .existingSecret .certManager.enabled -}}
    {{- $wrong = append $wrong "tls.internal.existingSecret and tls.internal.certManager.enabled both name a certificate: choose one" -}}
  {{- end -}}
  {{- if and .certManager.enabled (not (get .certManager.issuerRef "name")) -}}
    {{- $wrong = append $wrong "tls.internal.certManager needs the issuer: say tls.internal.certManager.issuerRef.name (and kind)" -}}
  {{- end -}}
  {{- if and (not .enabled) (or .existingSecret .certManager.enabled (ne .mode "demand")) -}}
    {{- $wrong = append $wrong "tls.internal says which certificate or mode, and tls.internal.enabled is false: say true, or nothing else" -}}
  {{- end -}}
{{- end -}}

{{- with .Values.redis -}}
  {{- if gt (len (compact (list .url .existingSecret (ternary "own" "" .own.enabled)))) 1 -}}
    {{- $wrong = append $wrong "redis.url, redis.existingSecret and redis.own.enabled each name a Redis: choose one" -}}
  {{- end -}}
  {{- if and .own.enabled (or (not .own.image) (hasSuffix ":latest" .own.image)) -}}
    {{- $wrong = append $wrong "redis.own.image must name an image of Redis or Valkey by its version, such as valkey/valkey:8.1" -}}
  {{- end -}}
{{- end -}}

{{- $declared := dict "topics" .Values.topics "consumerGroups" .Values.consumerGroups -}}
{{- range $key, $all := $declared -}}
  {{- $names := list -}}
  {{- range $all -}}
    {{- if has .name $names }}{{ $wrong = append $wrong (printf "%s names %s twice" $key .name) }}{{ end -}}
    {{- $names = append $names .name -}}
  {{- end -}}
{{- end -}}
{{- range .Values.topics -}}
  {{- if regexMatch "^(%RETRY%|%DLQ%|rmq_sys_)" .name -}}
    {{- $wrong = append $wrong (printf "topics: %s is a name of the system's own; choose one that does not begin with %%RETRY%%, %%DLQ%% or rmq_sys_" .name) -}}
  {{- end -}}
{{- end -}}
{{- $allowed := int (include "popwheel.setting" (list $ "controller.resources.declared_max" 2000)) -}}
{{- if gt (max (len .Values.topics) (len .Values.consumerGroups)) $allowed -}}
  {{- $wrong = append $wrong (printf "topics or consumerGroups name more than config.controller.resources.declared_max allows (%d)" $allowed) -}}
{{- end -}}

{{- with .Values.admin -}}
  {{- if and .ingress.enabled (not .ingress.hosts) -}}
    {{- $wrong = append $wrong "admin.ingress.enabled, and nobody could ask: say in admin.ingress.hosts under which names, as others are refused" -}}
  {{- end -}}
  {{- if and .httpRoute.enabled (or (not .httpRoute.parentRefs) (not .httpRoute.hostnames)) -}}
    {{- $wrong = append $wrong "admin.httpRoute.enabled needs the gateways and the names under which it is asked: say admin.httpRoute.parentRefs and hostnames" -}}
  {{- end -}}
{{- end -}}

{{- if and (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) -}}
  {{- $wrong = append $wrong "serviceAccount.create is false: say in serviceAccount.name which one the controllers have" -}}
{{- end -}}
{{- if and .Values.access.consoleUsers (not .Values.access.consoleSecret) -}}
  {{- $wrong = append $wrong "access.consoleUsers says that the Secret has users, and there is none: give access.consoleSecret" -}}
{{- end -}}
{{- if and .Values.access.checkSecret (not .Values.access.usersSecret) (not .Values.access.tokensSecret) -}}
  {{- $wrong = append $wrong "access.checkSecret says who `helm test` is, and nobody asks: give access.usersSecret or access.tokensSecret, too" -}}
{{- end -}}
{{- if $wrong }}{{ fail (printf "\n\nThese values can't be:\n- %s\n" (join "\n- " $wrong)) }}{{ end -}}
{{- end -}}
