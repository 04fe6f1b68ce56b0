{{/* The pod template of a coordinator, before podTemplate is merged over it. */}}
{{- define "headrace.coordinatorPod" -}}
{{- $root := .root -}}
{{- $coordinator := .root.Values.coordinator -}}
metadata:
  labels:
    {{- include "headrace.podLabels" . | nindent 4 }}
  annotations:
    checksum/config: {{ include "headrace.toml" $coordinator.settings | sha256sum }}
    {{- with $coordinator.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "headrace.serviceAccount" $root }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ $coordinator.terminationGracePeriodSeconds }}
  {{- with $root.Values.image.pullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- include "headrace.podSecurity" $root | nindent 4 }}
  {{- include "headrace.scheduling" . | nindent 2 }}
  {{- with $coordinator.extraInitContainers }}
  initContainers:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: coordinator
      image: {{ include "headrace.image" (dict "image" $root.Values.image "tag" $root.Chart.AppVersion) }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      {{- if $root.Values.recovery.name }}
      {{- include "headrace.idle" $root | nindent 6 }}
      {{- else }}
      args: [coordinator, --config, /etc/headrace/coordinator.toml]
      {{- end }}
      env:
        - name: HEADRACE_COORDINATOR_COORDINATOR_ID
          valueFrom:
            fieldRef: {fieldPath: metadata.name}
        - name: HEADRACE_POD_IP
          valueFrom:
            fieldRef: {fieldPath: status.podIP}
        - {name: HEADRACE_COORDINATOR_CLUSTER, value: {{ include "headrace.cluster" $root | quote }}}
        - {name: HEADRACE_COORDINATOR_ETCD_ENDPOINTS, value: {{ include "headrace.etcdEndpoints" $root | quote }}}
        - {name: HEADRACE_COORDINATOR_LISTEN, value: {{ printf "%s:7170" $root.Values.listenHost | quote }}}
        {{- if $coordinator.schemaRegistry.enabled }}
        - {name: HEADRACE_COORDINATOR_SCHEMA_REGISTRY_LISTEN, value: {{ printf "%s:8081" $root.Values.listenHost | quote }}}
        {{- end }}
        - {name: HEADRACE_COORDINATOR_METRICS_LISTEN, value: {{ printf "%s:9464" $root.Values.listenHost | quote }}}
        - {name: HEADRACE_COORDINATOR_LOG_FORMAT, value: {{ $root.Values.logs.format }}}
        - {name: HEADRACE_COORDINATOR_LOG_LEVEL, value: {{ $root.Values.logs.level }}}
        {{- with $root.Values.tracing.endpoint }}
        - {name: HEADRACE_COORDINATOR_OTLP_ENDPOINT, value: {{ . | quote }}}
        {{- end }}
        {{- /* Certificates bear no addresses of pods: with TLS each has the name that DNS gives it below its Service. */}}
        {{- $own := ternary (printf "{podIP}.%s:7170" (include "headrace.podDomain" .)) "$(HEADRACE_POD_IP):7170" (eq (include "headrace.tls" $root) "true") }}
        - {name: HEADRACE_COORDINATOR_ADVERTISED_ADDRESS, value: {{ $coordinator.advertisedAddress | default $own | quote }}}
        {{- with include "headrace.tlsEnvironment" (dict "root" $root "prefix" "HEADRACE_COORDINATOR_") }}{{ nindent 8 (trim .) }}{{ end }}
        {{- include "headrace.identityEnvironment" (dict "root" $root "prefix" "HEADRACE_COORDINATOR_") | nindent 8 }}
        {{- if include "headrace.hasAdmin" $root }}
        - {name: HEADRACE_COORDINATOR_ADMIN_API_KEY_FILE, value: /etc/headrace-admin/api-key}
        - {name: HEADRACE_COORDINATOR_MONITOR_API_KEY_FILE, value: /etc/headrace-monitor/api-key}
        {{- end }}
        {{- /* For `kubectl exec ... -- headrace`; the service itself reads none of them. */}}
        {{- include "headrace.clientEnvironment" (dict "root" $root "hasKey" (include "headrace.hasAdmin" $root)) | nindent 8 }}
        {{- with $coordinator.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        - {name: grpc, containerPort: 7170}
        {{- if $coordinator.schemaRegistry.enabled }}
        - {name: schemas, containerPort: 8081}
        {{- end }}
        - {name: metrics, containerPort: 9464}
      {{- if not $root.Values.recovery.name }}
      {{- include "headrace.probes" . | nindent 6 }}
      {{- end }}
      resources:
        {{- toYaml $coordinator.resources | nindent 8 }}
      securityContext:
        {{- include "headrace.containerSecurity" $root | nindent 8 }}
      volumeMounts:
        - {name: config, mountPath: /etc/headrace, readOnly: true}
        - {name: tmp, mountPath: /tmp}
        {{- with include "headrace.tlsMounts" $root }}{{ nindent 8 (trim .) }}{{ end }}
        {{- if include "headrace.hasAdmin" $root }}
        - {name: admin, mountPath: /etc/headrace-admin, readOnly: true}
        - {name: monitor, mountPath: /etc/headrace-monitor, readOnly: true}
        {{- end }}
        {{- with $coordinator.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    {{- with $coordinator.extraContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    - name: config
      configMap:
        name: {{ include "headrace.componentName" . }}
    - name: tmp
      emptyDir: {sizeLimit: 64Mi}
    {{- with include "headrace.tlsVolumes" $root }}{{ nindent 4 (trim .) }}{{ end }}
    {{- if include "headrace.hasAdmin" $root }}
    - name: admin
      secret: {secretName: {{ include "headrace.adminSecret" $root }}, defaultMode: 0440}
    - name: monitor
      secret: {secretName: {{ include "headrace.monitorSecret" $root }}, defaultMode: 0440}
    {{- end }}
    {{- with $coordinator.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}
