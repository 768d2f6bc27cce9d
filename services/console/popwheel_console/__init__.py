"""The console: pages in a browser that show and steer a cluster, by the admin API alone."""
