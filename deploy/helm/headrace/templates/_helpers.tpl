{{/*
Names. fullname has at most 31 characters, so that every name made from it stays under 52, the limit of a StatefulSet
whose pods carry its revision in a label.
*/}}
{{- define "headrace.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 31 | trimSuffix "-" -}}
{{- end -}}

{{- define "headrace.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 31 | trimSuffix "-" -}}
{{- else if contains (include "headrace.name" .) .Release.Name -}}
{{- .Release.Name | trunc 31 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "headrace.name" .) | trunc 31 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What a component's objects are called: (dict "root" $ "component" "broker"). */}}
{{- define "headrace.componentName" -}}
{{- printf "%s-%s" (include "headrace.fullname" .root) .component -}}
{{- end -}}

{{/* The labels that select a component's pods; they never change. */}}
{{- define "headrace.selectorLabels" -}}
app.kubernetes.io/name: {{ include "headrace.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* The labels of an object. Not for claim templates: those cannot be changed by an upgrade, and these hold versions. */}}
{{- define "headrace.labels" -}}
{{ include "headrace.selectorLabels" . }}
app.kubernetes.io/part-of: headrace
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/*
The labels of a pod: without versions of anything, so that a new chart alone restarts nothing. Pods of a recovery are told
from those before it.
(dict "root" $ "component" "broker" "values" .Values.broker)
*/}}
{{- define "headrace.podLabels" -}}
{{- $labels := fromYaml (include "headrace.selectorLabels" .) -}}
{{- with .root.Values.recovery.name }}{{- $_ := set $labels "headrace.dev/recovery" . }}{{- end -}}
{{- toYaml (merge $labels (dict "app.kubernetes.io/part-of" "headrace") (deepCopy .values.podLabels) .root.Values.commonLabels) -}}
{{- end -}}

{{- define "headrace.annotations" -}}
{{- with .Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* repository:tag, or repository@digest: (dict "image" .Values.image "tag" .Chart.AppVersion). */}}
{{- define "headrace.image" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (.image.tag | default .tag) -}}
{{- end -}}
{{- end -}}

{{/* The name of the cluster in etcd. */}}
{{- define "headrace.cluster" -}}
{{- .Values.cluster | default (include "headrace.fullname" .) -}}
{{- end -}}

{{- define "headrace.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "headrace.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{/* The host name of the coordinators, inside the Kubernetes cluster; and host:port, for clients there. */}}
{{- define "headrace.serviceName" -}}
{{- printf "%s.%s.svc.%s" (include "headrace.fullname" .) .Release.Namespace .Values.clusterDomain -}}
{{- end -}}

{{- define "headrace.bootstrap" -}}
{{- printf "%s:%d" (include "headrace.serviceName" .) 7170 -}}
{{- end -}}

{{/*
Names by which brokers know each other's certificates and the coordinators', joined by commas. Where clients' certificates
have the same authority there must be one, and the services' own certificate is good for this name.
*/}}
{{- define "headrace.internalAllowedNames" -}}
{{- if include "headrace.tls" . -}}
{{- if .Values.tls.internalAllowedNames -}}
{{- join "," .Values.tls.internalAllowedNames -}}
{{- else if not .Values.tls.internalSecretName -}}
{{- include "headrace.serviceName" . -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The DNS domain of a headless service: (dict "root" $ "component" "broker"). */}}
{{- define "headrace.podDomain" -}}
{{- printf "%s-headless.%s.svc.%s" (include "headrace.componentName" .) .root.Release.Namespace .root.Values.clusterDomain -}}
{{- end -}}

{{/* What clients outside are told of a broker, host:port; {nodeIP} is left in it: (dict "root" $ "index" 0). */}}
{{- define "headrace.externalAddress" -}}
{{- $external := .root.Values.broker.external -}}
{{- if $external.addresses -}}
{{- index $external.addresses .index -}}
{{- else -}}
{{- $address := $external.addressTemplate | replace "{id}" (toString .index) -}}
{{- if $external.nodePorts -}}
{{- $address = $address | replace "{nodePort}" (index $external.nodePorts .index | int | toString) -}}
{{- end -}}
{{- $address -}}
{{- end -}}
{{- end -}}

{{/*
Whether brokers serve the native protocol, as true or nothing. Not where clients outside could not be given an address of
each broker: without a node port for it, or behind one host for several brokers.
*/}}
{{- define "headrace.native" -}}
{{- $broker := .Values.broker -}}
{{- if $broker.native.enabled -}}
{{- if not $broker.external.enabled -}}
true
{{- else if eq $broker.external.type "NodePort" -}}
{{- if $broker.native.nodePorts }}true{{ end -}}
{{- else -}}
{{- $hosts := list -}}
{{- range $index := until (int $broker.replicas) -}}
{{- $address := $broker.external.addressTemplate | replace "{id}" (toString $index) -}}
{{- if lt $index (len $broker.external.addresses) }}{{ $address = index $broker.external.addresses $index }}{{ end -}}
{{- $hosts = append $hosts (regexReplaceAll ":[^:]*$" $address "") -}}
{{- end -}}
{{- if eq (len ($hosts | uniq)) (len $hosts) }}true{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The members of etcd, joined by commas: those given, else the bundled ones. */}}
{{- define "headrace.etcdEndpoints" -}}
{{- if .Values.etcd.endpoints -}}
{{- join "," .Values.etcd.endpoints -}}
{{- else -}}
{{- $name := include "headrace.componentName" (dict "root" . "component" "etcd") -}}
{{- $domain := include "headrace.podDomain" (dict "root" . "component" "etcd") -}}
{{- $members := list -}}
{{- range $index := until 3 -}}
{{- $members = append $members (printf "%s-%d.%s:2379" $name $index $domain) -}}
{{- end -}}
{{- join "," $members -}}
{{- end -}}
{{- end -}}

{{/* The bundled members of etcd, as each of them is told: fixed, whatever the values say. */}}
{{- define "headrace.etcdInitialCluster" -}}
{{- $name := include "headrace.componentName" (dict "root" . "component" "etcd") -}}
{{- $domain := include "headrace.podDomain" (dict "root" . "component" "etcd") -}}
{{- $members := list -}}
{{- range $index := until 3 -}}
{{- $members = append $members (printf "%s-%d=%s://%s-%d.%s:2380" $name $index (include "headrace.etcdScheme" $) $name $index $domain) -}}
{{- end -}}
{{- join "," $members -}}
{{- end -}}

{{/* What tells this etcd from others whose members might meet it. */}}
{{- define "headrace.etcdToken" -}}
{{- printf "%s.%s" (include "headrace.componentName" (dict "root" . "component" "etcd")) .Release.Namespace -}}
{{- end -}}

{{/* A service's settings as TOML. Numbers come from YAML as floats; whole ones are written as such. */}}
{{- define "headrace.toml" -}}
{{- range $name, $value := . }}
{{- if kindIs "float64" $value }}
{{- if eq (floor $value) $value }}
{{ $name }} = {{ int64 $value }}
{{- else }}
{{ $name }} = {{ $value }}
{{- end }}
{{- else }}
{{ $name }} = {{ toJson $value }}
{{- end }}
{{- end }}
{{- end -}}

{{/* What the restricted Pod Security level asks of a container, for every container of this chart. */}}
{{- define "headrace.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* The same of a pod, with the user of the image unless the platform chooses one. */}}
{{- define "headrace.podSecurity" -}}
runAsNonRoot: true
{{- if .Values.runAsImageUser }}
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
{{- end }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* Where pods are placed: (dict "root" $ "component" "broker" "values" .Values.broker). */}}
{{- define "headrace.scheduling" -}}
{{- $selector := include "headrace.selectorLabels" . -}}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- if .values.affinity }}
affinity:
  {{- toYaml .values.affinity | nindent 2 }}
{{- else if eq .values.podAntiAffinity "hard" }}
affinity:
  podAntiAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- $selector | nindent 12 }}
{{- else if eq .values.podAntiAffinity "soft" }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- $selector | nindent 14 }}
{{- end }}
topologySpreadConstraints:
{{- if .values.topologySpreadConstraints }}
  {{- toYaml .values.topologySpreadConstraints | nindent 2 }}
{{- else }}
{{- range $key := list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - maxSkew: 1
    topologyKey: {{ $key }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- $selector | nindent 8 }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The secret of the services' certificates, and that of those among themselves. */}}
{{- define "headrace.tlsSecret" -}}
{{- .Values.tls.secretName | default (printf "%s-tls" (include "headrace.fullname" .)) -}}
{{- end -}}

{{/* A service's settings of TLS: (dict "root" $ "prefix" "HEADRACE_BROKER_"). */}}
{{- define "headrace.tlsEnvironment" -}}
{{- if include "headrace.tls" .root }}
- {name: {{ .prefix }}METRICS_TLS, value: "true"}
- {name: {{ .prefix }}TLS_CERT_FILE, value: /etc/headrace-tls/tls.crt}
- {name: {{ .prefix }}TLS_KEY_FILE, value: /etc/headrace-tls/tls.key}
- {name: {{ .prefix }}TLS_CA_FILE, value: /etc/headrace-tls/ca.crt}
- {name: {{ .prefix }}TLS_CLIENT_AUTH, value: {{ .root.Values.tls.clientAuth | quote }}}
{{- if .root.Values.tls.internalSecretName }}
- {name: {{ .prefix }}INTERNAL_TLS_CERT_FILE, value: /etc/headrace-internal-tls/tls.crt}
- {name: {{ .prefix }}INTERNAL_TLS_KEY_FILE, value: /etc/headrace-internal-tls/tls.key}
- {name: {{ .prefix }}INTERNAL_TLS_CA_FILE, value: /etc/headrace-internal-tls/ca.crt}
{{- end }}
{{- end }}
{{- include "headrace.etcdEnvironment" . }}
{{- end -}}

{{/* Who is served, and where the API key of the first administrator is: (dict "root" $ "prefix" "HEADRACE_BROKER_"). */}}
{{- define "headrace.identityEnvironment" -}}
{{- $posture := include "headrace.posture" .root -}}
- {name: {{ .prefix }}POSTURE, value: {{ $posture }}}
{{- if ne $posture "required" }}
- {name: {{ .prefix }}INSECURE, value: "true"}
{{- end }}
{{- end -}}

{{- define "headrace.adminSecret" -}}
{{- .Values.identity.adminSecretName | default (printf "%s-admin" (include "headrace.fullname" .)) -}}
{{- end -}}

{{/* Whether there is an administrator; empty if not. */}}
{{- define "headrace.hasAdmin" -}}
{{- if or .Values.identity.adminSecretName (ne (include "headrace.posture" .) "open") }}true{{ end -}}
{{- end -}}

{{- define "headrace.monitorSecret" -}}
{{- .Values.identity.monitorSecretName | default (printf "%s-monitor" (include "headrace.fullname" .)) -}}
{{- end -}}

{{/* Whole directories, so that a changed secret reaches the files. */}}
{{- define "headrace.tlsMounts" -}}
{{- if or (include "headrace.tls" .) (include "headrace.etcdTls" .) }}
- {name: tls, mountPath: /etc/headrace-tls, readOnly: true}
{{- if .Values.tls.internalSecretName }}
- {name: internal-tls, mountPath: /etc/headrace-internal-tls, readOnly: true}
{{- end }}
{{- end }}
{{- include "headrace.etcdMounts" . }}
{{- end -}}

{{- define "headrace.tlsVolumes" -}}
{{- if or (include "headrace.tls" .) (include "headrace.etcdTls" .) }}
- name: tls
  secret: {secretName: {{ include "headrace.tlsSecret" . }}, defaultMode: 0440}
{{- with .Values.tls.internalSecretName }}
- name: internal-tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end }}
{{- include "headrace.etcdVolumes" . }}
{{- end -}}

{{/* Where a probe asks: over HTTP, whose port has an event loop of its own, so that no flood of calls ends a pod. */}}
{{- define "headrace.probe" -}}
httpGet: {path: /health/{{ .name }}, port: metrics{{ if include "headrace.tls" .root }}, scheme: HTTPS{{ end }}}
{{- end -}}

{{/* Startup, liveness and readiness, from the service's own health: (dict "root" $ "values" .Values.broker). */}}
{{- define "headrace.probes" -}}
{{- $probes := .values.probes -}}
startupProbe:
  {{ include "headrace.probe" (merge (dict "name" "startup") .) }}
  periodSeconds: {{ $probes.startup.periodSeconds }}
  timeoutSeconds: {{ $probes.startup.timeoutSeconds }}
  failureThreshold: {{ div (add $probes.startup.budgetSeconds $probes.startup.periodSeconds -1) $probes.startup.periodSeconds }}
livenessProbe:
  {{ include "headrace.probe" (merge (dict "name" "liveness") .) }}
  periodSeconds: {{ $probes.liveness.periodSeconds }}
  timeoutSeconds: {{ $probes.liveness.timeoutSeconds }}
  failureThreshold: {{ $probes.liveness.failureThreshold }}
readinessProbe:
  {{ include "headrace.probe" (merge (dict "name" "readiness") .) }}
  periodSeconds: {{ $probes.readiness.periodSeconds }}
  timeoutSeconds: {{ $probes.readiness.timeoutSeconds }}
  failureThreshold: {{ $probes.readiness.failureThreshold }}
{{- end -}}

{{/* A pod template with the values' podTemplate merged over it: (dict "template" TEXT "over" .Values.broker.podTemplate). */}}
{{- define "headrace.mergedTemplate" -}}
{{- toYaml (mergeOverwrite (fromYaml .template) (deepCopy .over)) -}}
{{- end -}}
