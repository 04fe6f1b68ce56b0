{{/*
What values.schema.json cannot say, because it is about two values at once. Each failure names both and what to do.
Included by the broker's StatefulSet, and by the certificate, which Helm renders before it.
*/}}
{{- define "headrace.checks" -}}
{{- $broker := .Values.broker -}}
{{- $etcd := .Values.etcd -}}
{{- if and $etcd.endpoints $etcd.bundled.enabled -}}
{{- fail "etcd.endpoints are given and etcd.bundled.enabled is true: set etcd.bundled.enabled=false to use those endpoints, or empty etcd.endpoints. (Where the bundled etcd has run, its data does not move by itself: docs/guides/disaster-recovery.md.)" -}}
{{- end -}}
{{- if not (or $etcd.endpoints $etcd.bundled.enabled) -}}
{{- fail "no etcd: give etcd.endpoints, or set etcd.bundled.enabled=true" -}}
{{- end -}}
{{- if and .Values.backup.enabled (not $etcd.bundled.enabled) -}}
{{- fail "backup.enabled is for the bundled etcd, and etcd.bundled.enabled is false: back up an etcd of yours where it is run" -}}
{{- end -}}
{{- if and .Values.backup.enabled (not .Values.backup.claimName) -}}
{{- fail "backup.enabled needs backup.claimName: a claim that you have made, for the volume that the snapshots go to (docs/guides/disaster-recovery.md)" -}}
{{- end -}}
{{- $tls := .Values.tls -}}
{{- $isTls := eq (include "headrace.tls" .) "true" -}}
{{- $posture := include "headrace.posture" . -}}
{{- $made := has (include "headrace.certificates" .) (list "chart" "cert-manager") -}}
{{- if and $tls.secretName $tls.certManager.enabled -}}
{{- fail "tls.secretName and tls.certManager.enabled exclude each other: with cert-manager the secret is made" -}}
{{- end -}}
{{- if and (not $isTls) (or $tls.secretName $tls.certManager.enabled $tls.internalSecretName) -}}
{{- fail "certificates are given under tls and tls.enabled is false: set tls.enabled=true, or take them out" -}}
{{- end -}}
{{- if and $etcd.bundled.enabled $etcd.tls.secretName -}}
{{- fail "etcd.tls is for an etcd of yours (etcd.endpoints); the bundled one has the certificates of tls (etcd.bundled.tls)" -}}
{{- end -}}
{{- if and (eq (toString $etcd.bundled.tls) "true") (not $isTls) -}}
{{- fail "etcd.bundled.tls is true and tls.enabled is false: the bundled etcd has the certificates of tls" -}}
{{- end -}}
{{- if and (not $etcd.bundled.enabled) (eq (toString $etcd.auth.enabled) "true") (not $etcd.auth.secretName) -}}
{{- fail "etcd.auth.enabled is true for an etcd of yours: name the secret with the password of etcd.auth.user in etcd.auth.secretName" -}}
{{- end -}}
{{- if and $etcd.endpoints (not .Values.cluster) (not (fromJson (include "headrace.runningEnvironment" .))) -}}
{{- $name := include "headrace.fullname" . -}}
{{- fail (printf "etcd.endpoints are given and cluster is empty: clusters of one name in one etcd would be the same cluster. Set cluster to a name that no other cluster has there, such as %s-%s; a release that runs already has the name %s" .Release.Namespace $name $name) -}}
{{- end -}}
{{- if lookup "v1" "ServiceAccount" .Release.Namespace "default" -}}
{{- range $name := list $tls.secretName $tls.internalSecretName $etcd.tls.secretName -}}
{{- if and $name (not (lookup "v1" "Secret" $.Release.Namespace $name)) -}}
{{- fail (printf "there is no secret %s in namespace %s: make it first, with tls.crt, tls.key and ca.crt" $name $.Release.Namespace) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if lookup "v1" "ServiceAccount" .Release.Namespace "default" -}}
{{- range $name := list .Values.identity.adminSecretName .Values.identity.monitorSecretName -}}
{{- if and $name (not (lookup "v1" "Secret" $.Release.Namespace $name)) -}}
{{- fail (printf "there is no secret %s in namespace %s: make it first, with an API key under api-key (docs/guides/installing.md)" $name $.Release.Namespace) -}}
{{- end -}}
{{- end -}}
{{- $password := .Values.etcd.auth.secretName -}}
{{- if and $password (not (lookup "v1" "Secret" .Release.Namespace $password)) -}}
{{- fail (printf "there is no secret %s in namespace %s: make it first, with password, and root-password for the bundled etcd" $password .Release.Namespace) -}}
{{- end -}}
{{- end -}}
{{- if and (or .Values.identity.quotas .Values.identity.kubernetesIssuer) (not (include "headrace.hasAdmin" .)) -}}
{{- fail "identity.quotas or identity.kubernetesIssuer is given, identity.posture is open, and only an administrator sets them: name the secret with an administrator's API key in identity.adminSecretName" -}}
{{- end -}}
{{- $mirror := .Values.mirror -}}
{{- if $mirror.enabled -}}
{{- if and (ne $posture "open") (not $mirror.apiKeySecretName) -}}
{{- fail (printf "mirror.enabled is true and identity.posture is %s: name the secret with the API key of the workers in mirror.apiKeySecretName (docs/guides/mirror-deployment.md)" $posture) -}}
{{- end -}}
{{- if and $isTls (eq $tls.clientAuth "required") (not $mirror.clientTlsSecretName) -}}
{{- fail "mirror.enabled is true and tls.clientAuth is required: name the secret with the certificate of the workers in mirror.clientTlsSecretName" -}}
{{- end -}}
{{- if and $mirror.clientTlsSecretName (not $isTls) -}}
{{- fail "mirror.clientTlsSecretName is given and tls.enabled is false: set tls.enabled=true, or take it out" -}}
{{- end -}}
{{- if lookup "v1" "ServiceAccount" .Release.Namespace "default" -}}
{{- $named := list $mirror.apiKeySecretName $mirror.clientTlsSecretName -}}
{{- range $mirror.sources }}{{ $named = append $named .secretName }}{{ end -}}
{{- range $name := $named -}}
{{- if and $name (not (lookup "v1" "Secret" $.Release.Namespace $name)) -}}
{{- fail (printf "there is no secret %s in namespace %s: make it first (docs/guides/mirror-deployment.md)" $name $.Release.Namespace) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $factor := .Values.coordinator.settings.default_replication_factor -}}
{{- if and $factor (gt (int $factor) (int $broker.replicas)) -}}
{{- fail (printf "coordinator.settings.default_replication_factor is %d and broker.replicas is %d: a partition needs as many brokers as it has replicas" (int $factor) (int $broker.replicas)) -}}
{{- end -}}
{{- range .Values.topics -}}
{{- $replicas := int (.replicationFactor | default 0) -}}
{{- if gt $replicas (int $broker.replicas) -}}
{{- fail (printf "topic %s: replicationFactor is %d and broker.replicas is %d: a partition needs as many brokers as it has replicas" .name $replicas (int $broker.replicas)) -}}
{{- end -}}
{{- $minimum := int (dig "config" "min_insync_replicas" 0 .) -}}
{{- $known := $replicas | default (min 3 (int $broker.replicas)) -}}
{{- if gt $minimum (int $known) -}}
{{- fail (printf "topic %s: min_insync_replicas is %d and each partition has %d replicas: acks=all could never succeed; lower the one or raise replicationFactor" .name $minimum (int $known)) -}}
{{- end -}}
{{- end -}}
{{- $stop := int (dig "stop_timeout_ms" 60000 $broker.settings) -}}
{{- $drain := ternary (int $broker.drain.timeoutSeconds) 0 $broker.drain.enabled -}}
{{- if le (mul 1000 (int $broker.terminationGracePeriodSeconds)) (add (mul 1000 $drain) $stop) -}}
{{- fail (printf "broker.terminationGracePeriodSeconds is %d: it must be more than the drain (%d s) and the orderly stop (broker.settings.stop_timeout_ms, %d ms) together, or brokers are killed before they have finished" (int $broker.terminationGracePeriodSeconds) $drain $stop) -}}
{{- end -}}
{{- $coordinatorStop := int (dig "stop_timeout_ms" 15000 .Values.coordinator.settings) -}}
{{- if le (mul 1000 (int .Values.coordinator.terminationGracePeriodSeconds)) $coordinatorStop -}}
{{- fail (printf "coordinator.terminationGracePeriodSeconds is %d: it must be more than coordinator.settings.stop_timeout_ms (%d ms)" (int .Values.coordinator.terminationGracePeriodSeconds) $coordinatorStop) -}}
{{- end -}}
{{- if and .Values.coordinator.autoscaling.enabled (gt (int .Values.coordinator.autoscaling.minReplicas) (int .Values.coordinator.autoscaling.maxReplicas)) -}}
{{- fail "coordinator.autoscaling.minReplicas is more than coordinator.autoscaling.maxReplicas" -}}
{{- end -}}
{{- if and .Values.tracing.egress.enabled (not .Values.tracing.endpoint) -}}
{{- fail "tracing.egress.enabled needs tracing.endpoint" -}}
{{- end -}}
{{- $external := $broker.external -}}
{{- if $external.enabled -}}
{{- if and $external.addresses $external.addressTemplate -}}
{{- fail "broker.external has addresses and an addressTemplate: give one of them" -}}
{{- end -}}
{{- if not (or $external.addresses $external.addressTemplate) -}}
{{- fail "broker.external needs to know what clients are to connect to: give addressTemplate (with {id}) or addresses, one a broker" -}}
{{- end -}}
{{- if and $external.addresses (lt (len $external.addresses) (int $broker.replicas)) -}}
{{- fail (printf "broker.external.addresses has %d entries for %d brokers" (len $external.addresses) (int $broker.replicas)) -}}
{{- end -}}
{{- if and $external.addressTemplate (gt (int $broker.replicas) 1) (not (or (contains "{id}" $external.addressTemplate) (contains "{nodePort}" $external.addressTemplate))) -}}
{{- fail (printf "broker.external.addressTemplate %q gives all brokers the same address: use {id} or {nodePort} in it" $external.addressTemplate) -}}
{{- end -}}
{{- if and $external.nodePorts (ne $external.type "NodePort") -}}
{{- fail "broker.external.nodePorts needs broker.external.type=NodePort" -}}
{{- end -}}
{{- if and (eq $external.type "NodePort") (lt (len $external.nodePorts) (int $broker.replicas)) -}}
{{- fail (printf "broker.external.nodePorts has %d entries for %d brokers: clients are told these ports, so each broker needs a fixed one" (len $external.nodePorts) (int $broker.replicas)) -}}
{{- end -}}
{{- end -}}
{{- if and $external.annotationsByBroker (lt (len $external.annotationsByBroker) (int $broker.replicas)) -}}
{{- fail (printf "broker.external.annotationsByBroker has %d entries for %d brokers: give one map for each, {} where there is nothing" (len $external.annotationsByBroker) (int $broker.replicas)) -}}
{{- end -}}
{{- range $name, $over := dict "broker" $broker.podTemplate "coordinator" .Values.coordinator.podTemplate "etcd.bundled" $etcd.bundled.podTemplate -}}
{{- range $list, $instead := dict "containers" "extraContainers" "initContainers" "extraInitContainers" -}}
{{- if hasKey (dig "spec" dict $over) $list -}}
{{- fail (printf "%s.podTemplate.spec.%s would replace the chart's own: %s" $name $list (ternary "leave it out" (printf "use %s.%s" $name $instead) (eq $name "etcd.bundled"))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $native := $broker.native -}}
{{- $nodes := and $external.enabled (eq $external.type "NodePort") -}}
{{- if and $native.nodePorts (not (and $native.enabled $nodes)) -}}
{{- fail "broker.native.nodePorts needs broker.native.enabled=true, broker.external.enabled=true and broker.external.type=NodePort" -}}
{{- end -}}
{{- if and $native.nodePorts (lt (len $native.nodePorts) (int $broker.replicas)) -}}
{{- fail (printf "broker.native.nodePorts has %d entries for %d brokers: clients are told these ports, so each broker needs a fixed one" (len $native.nodePorts) (int $broker.replicas)) -}}
{{- end -}}
{{- range $native.nodePorts -}}
{{- if has . $external.nodePorts -}}
{{- fail (printf "port %d is in broker.external.nodePorts and in broker.native.nodePorts: a node port serves one Service" (int .)) -}}
{{- end -}}
{{- end -}}
{{- if and $made (not $tls.certManager.ipAddresses) $broker.external.enabled (contains "{nodeIP}" $broker.external.addressTemplate) -}}
{{- fail "broker.external.addressTemplate has {nodeIP}, and no certificate can name nodes that are not known yet: list the nodes' addresses in tls.certManager.ipAddresses, or give names in broker.external.addresses" -}}
{{- end -}}
{{- $outside := list -}}
{{- if $external.enabled }}{{ $outside = append $outside "broker.external.enabled is true" }}{{ end -}}
{{- if ne .Values.coordinator.service.type "ClusterIP" }}{{ $outside = append $outside (printf "coordinator.service.type is %s" .Values.coordinator.service.type) }}{{ end -}}
{{- if and $outside (include "headrace.hasAdmin" .) (not $isTls) (not .Values.insecure) -}}
{{- fail (printf "%s, identity.posture is %s and tls.enabled is false: API keys would cross the network in plain text. Set tls.enabled=true, or insecure=true if that is intended" (join " and " $outside) $posture) -}}
{{- end -}}
{{- if and $outside (not .Values.insecure) (ne $posture "required") (not (and $isTls (eq $tls.clientAuth "required"))) -}}
{{- fail (printf "%s, and the cluster requires no client certificate (tls.enabled is %t, tls.clientAuth is %s): every client that reaches those addresses can read, write and delete everything. Set tls.enabled=true and identity.posture=required or tls.clientAuth=required, or insecure=true if that is intended" (join " and " $outside) $isTls $tls.clientAuth) -}}
{{- end -}}
{{- end -}}
