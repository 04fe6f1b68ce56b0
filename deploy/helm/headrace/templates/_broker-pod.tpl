{{/* The failure domains of a broker that are labels of its node: name, label, and variable of the setting. */}}
{{- define "headrace.nodeLabels" -}}
{{- with .Values.broker.dataCenter.fromNodeLabel }}
- {name: data-center, label: {{ . | quote }}, variable: HEADRACE_BROKER_DATA_CENTER}
{{- end }}
{{- with .Values.broker.rack.fromNodeLabel }}
- {name: rack, label: {{ . | quote }}, variable: HEADRACE_BROKER_RACK}
{{- end }}
{{- end -}}

{{/* The pod template of a broker, before podTemplate is merged over it. */}}
{{- define "headrace.brokerPod" -}}
{{- $root := .root -}}
{{- $broker := .root.Values.broker -}}
{{- $native := include "headrace.native" $root -}}
{{- $name := include "headrace.componentName" . -}}
{{- $domains := include "headrace.nodeLabels" $root | fromYamlArray -}}
{{- $image := include "headrace.image" (dict "image" $root.Values.image "tag" $root.Chart.AppVersion) -}}
metadata:
  labels:
    {{- include "headrace.podLabels" . | nindent 4 }}
  annotations:
    checksum/config: {{ include "headrace.toml" $broker.settings | sha256sum }}
    {{- with $broker.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "headrace.serviceAccount" $root }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ $broker.terminationGracePeriodSeconds }}
  {{- with $root.Values.image.pullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- include "headrace.podSecurity" $root | nindent 4 }}
  {{- include "headrace.scheduling" . | nindent 2 }}
  {{- if or $domains $broker.extraInitContainers }}
  initContainers:
    {{- range $domains }}
    - name: {{ .name }}
      image: {{ $image }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      args: [node-label, --label, {{ .label | quote }}, --output, /run/headrace/{{ .name }}]
      env:
        - name: HEADRACE_NODE_NAME
          valueFrom:
            fieldRef: {fieldPath: spec.nodeName}
      resources:
        requests: {cpu: 10m, memory: 32Mi}
        limits: {memory: 64Mi}
      securityContext:
        {{- include "headrace.containerSecurity" $root | nindent 8 }}
      volumeMounts:
        - {name: run, mountPath: /run/headrace}
        - {name: token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
    {{- end }}
    {{- with $broker.extraInitContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
  containers:
    - name: broker
      image: {{ $image }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      {{- if $root.Values.recovery.name }}
      {{- include "headrace.idle" $root | nindent 6 }}
      {{- else }}
      args: [broker, --config, /etc/headrace/broker.toml]
      {{- end }}
      env:
        - name: HEADRACE_BROKER_BROKER_ID
          valueFrom:
            fieldRef: {fieldPath: "metadata.labels['apps.kubernetes.io/pod-index']"}
        - name: HEADRACE_POD_NAME
          valueFrom:
            fieldRef: {fieldPath: metadata.name}
        - name: HEADRACE_BROKER_INSTANCE
          valueFrom:
            fieldRef: {fieldPath: metadata.uid}
        - name: HEADRACE_BROKER_HOST
          valueFrom:
            fieldRef: {fieldPath: spec.nodeName}
        {{- if $broker.external.enabled }}
        - name: HEADRACE_NODE_IP
          valueFrom:
            fieldRef: {fieldPath: status.hostIP}
        {{- end }}
        - {name: HEADRACE_BROKER_CLUSTER, value: {{ include "headrace.cluster" $root | quote }}}
        - {name: HEADRACE_BROKER_ETCD_ENDPOINTS, value: {{ include "headrace.etcdEndpoints" $root | quote }}}
        - {name: HEADRACE_BROKER_DATA_DIR, value: /var/lib/headrace/data}
        - {name: HEADRACE_BROKER_LISTEN, value: {{ printf "%s:7181" $root.Values.listenHost | quote }}}
        - {name: HEADRACE_BROKER_INTERNAL_LISTEN, value: {{ printf "%s:7381" $root.Values.listenHost | quote }}}
        - {name: HEADRACE_BROKER_REPLICATION_LISTEN, value: {{ printf "%s:7383" $root.Values.listenHost | quote }}}
        - {name: HEADRACE_BROKER_METRICS_LISTEN, value: {{ printf "%s:9464" $root.Values.listenHost | quote }}}
        - {name: HEADRACE_BROKER_LOG_FORMAT, value: {{ $root.Values.logs.format }}}
        - {name: HEADRACE_BROKER_LOG_LEVEL, value: {{ $root.Values.logs.level }}}
        {{- with $root.Values.tracing.endpoint }}
        - {name: HEADRACE_BROKER_OTLP_ENDPOINT, value: {{ . | quote }}}
        {{- end }}
        {{- $inside := printf "$(HEADRACE_POD_NAME).%s" (include "headrace.podDomain" .) }}
        - {name: HEADRACE_BROKER_INTERNAL_ADVERTISED_ADDRESS, value: {{ printf "%s:7381" $inside | quote }}}
        - {name: HEADRACE_BROKER_REPLICATION_ADVERTISED_ADDRESS, value: {{ printf "%s:7383" $inside | quote }}}
        {{- if not $broker.external.enabled }}
        - {name: HEADRACE_BROKER_ADVERTISED_ADDRESS, value: {{ printf "%s:7181" $inside | quote }}}
        {{- end }}
        - {name: HEADRACE_BROKER_NATIVE_LISTEN, value: {{ ternary (printf "%s:7183" $root.Values.listenHost) "off" (eq $native "true") | quote }}}
        {{- if and $native (not $broker.external.enabled) }}
        - {name: HEADRACE_BROKER_NATIVE_ADVERTISED_ADDRESS, value: {{ printf "%s:7183" $inside | quote }}}
        {{- end }}
        {{- $files := list }}
        {{- if $broker.external.enabled }}
        {{- $files = append $files "HEADRACE_BROKER_ADVERTISED_ADDRESS=/etc/headrace-addresses/$(HEADRACE_BROKER_BROKER_ID)" }}
        {{- if $native }}
        {{- $files = append $files "HEADRACE_BROKER_NATIVE_ADVERTISED_ADDRESS=/etc/headrace-addresses/native-$(HEADRACE_BROKER_BROKER_ID)" }}
        {{- end }}
        {{- end }}
        {{- range $domains }}
        {{- $files = append $files (printf "%s=/run/headrace/%s" .variable .name) }}
        {{- end }}
        {{- with $files }}
        - {name: HEADRACE_FROM_FILES, value: {{ join "," . | quote }}}
        {{- end }}
        {{- with include "headrace.internalAllowedNames" $root }}
        - {name: HEADRACE_BROKER_INTERNAL_TLS_ALLOWED_NAMES, value: {{ . | quote }}}
        {{- end }}
        {{- with include "headrace.tlsEnvironment" (dict "root" $root "prefix" "HEADRACE_BROKER_") }}{{ nindent 8 (trim .) }}{{ end }}
        {{- include "headrace.identityEnvironment" (dict "root" $root "prefix" "HEADRACE_BROKER_") | nindent 8 }}
        {{- with $broker.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        - {name: grpc, containerPort: 7181}
        {{- if $native }}
        - {name: native, containerPort: 7183}
        {{- end }}
        - {name: internal, containerPort: 7381}
        - {name: replication, containerPort: 7383}
        - {name: metrics, containerPort: 9464}
      {{- if not $root.Values.recovery.name }}
      {{- include "headrace.probes" . | nindent 6 }}
      {{- if $broker.drain.enabled }}
      lifecycle:
        preStop:
          exec:
            command: [headrace-container, drain, --config, /etc/headrace/broker.toml, --timeout, {{ $broker.drain.timeoutSeconds | quote }}]
      {{- end }}
      {{- end }}
      resources:
        {{- toYaml $broker.resources | nindent 8 }}
      securityContext:
        {{- include "headrace.containerSecurity" $root | nindent 8 }}
      volumeMounts:
        - {name: data, mountPath: /var/lib/headrace}
        - {name: config, mountPath: /etc/headrace, readOnly: true}
        - {name: tmp, mountPath: /tmp}
        {{- if $broker.external.enabled }}
        - {name: addresses, mountPath: /etc/headrace-addresses, readOnly: true}
        {{- end }}
        {{- if $domains }}
        - {name: run, mountPath: /run/headrace, readOnly: true}
        {{- end }}
        {{- with include "headrace.tlsMounts" $root }}{{ nindent 8 (trim .) }}{{ end }}
        {{- with $broker.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    {{- with $broker.extraContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    - name: config
      configMap:
        name: {{ $name }}
    - name: tmp
      emptyDir: {sizeLimit: 64Mi}
    {{- if $broker.external.enabled }}
    - name: addresses
      configMap:
        name: {{ $name }}-addresses
    {{- end }}
    {{- if $domains }}
    - name: run
      emptyDir: {sizeLimit: 1Mi}
    - name: token
      projected:
        sources:
          - serviceAccountToken: {path: token, expirationSeconds: 3600}
          - configMap:
              name: kube-root-ca.crt
              items: [{key: ca.crt, path: ca.crt}]
    {{- end }}
    {{- with include "headrace.tlsVolumes" $root }}{{ nindent 4 (trim .) }}{{ end }}
    {{- with $broker.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}
